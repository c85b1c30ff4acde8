"use strict";
/* Zoom, search and keyboard of the flame graph.  The drawing is complete without: this only moves and dims what is there. */
(() => {
  const svg = document.querySelector("svg.flame");
  if (!svg) return;
  const say = document.querySelector(".now"), find = document.querySelector(".bar input"), found = document.querySelector(".found");
  const out = document.querySelector(".bar .out"), chips = [...document.querySelectorAll(".chip")];
  const nodes = [...svg.querySelectorAll(":scope > .n")].map((element) => ({
    element,
    name: element.querySelector("title").textContent,
    start: parseFloat(element.getAttribute("x")),
    width: parseFloat(element.getAttribute("width")),
    depth: Number(element.getAttribute("aria-level")),
    kept: true,
  }));
  if (!nodes.length) return;
  const slack = 1e-3, of = new Map(nodes.map((node) => [node.element, node]));
  nodes.forEach((node) => node.element.querySelector("title").remove());  // the line below says it at once
  let zoomed = nodes[0], at = nodes[0];
  const inside = (a, b) => a.start >= b.start - slack && a.start + a.width <= b.start + b.width + slack;

  function draw() {
    const room = svg.clientWidth / 100;
    for (const node of nodes) {
      const above = node.depth < zoomed.depth && inside(zoomed, node);
      const below = node.depth >= zoomed.depth && inside(node, zoomed);
      const start = above ? 0 : ((node.start - zoomed.start) / zoomed.width) * 100;
      const width = above ? 100 : (node.width / zoomed.width) * 100;
      node.kept = (above || below) && width * room > 0.4;
      node.element.style.display = node.kept ? "" : "none";
      if (!node.kept) continue;
      node.element.setAttribute("x", start + "%");
      node.element.setAttribute("width", width + "%");
      node.element.classList.toggle("above", above);
      node.element.querySelector("text").style.visibility = width * room > 34 ? "visible" : "hidden";
    }
    out.disabled = zoomed === nodes[0];
  }
  function zoom(node) { zoomed = node; draw(); }
  function go(node) {
    if (!node) return;
    at.element.tabIndex = -1; at = node; at.element.tabIndex = 0; at.element.focus({ preventScroll: false });
  }
  const tell = (node) => { say.textContent = node.name; };
  function mark() {
    const word = find.value.trim().toLowerCase(), layer = chips.find((chip) => chip.getAttribute("aria-pressed") === "true");
    let sum = 0, end = -1, hits = 0;
    const ordered = word ? [...nodes].sort((a, b) => a.start - b.start || a.depth - b.depth) : [];
    const matches = (node) => word && node.depth > 1 && node.name.toLowerCase().split("\n")[0].includes(word);
    for (const node of ordered) {
      if (!matches(node)) continue;
      hits += 1;
      if (node.start + node.width > end + slack) { sum += node.start + node.width - Math.max(end, node.start); end = node.start + node.width; }
    }
    for (const node of nodes) {
      const hit = matches(node);
      node.element.classList.toggle("hit", Boolean(hit));
      const kind = layer && "L-" + layer.dataset.layer;
      node.element.classList.toggle("dim", Boolean((word && !hit) || (kind && !node.element.classList.contains(kind))));
    }
    found.textContent = word ? hits + " found, " + sum.toFixed(1) + " % of CPU time" : "";
  }
  const parent = (node) => nodes.findLast((one) => one.depth === node.depth - 1 && inside(node, one) && one.kept);
  const child = (node) => nodes.find((one) => one.depth === node.depth + 1 && inside(one, node) && one.kept);
  function beside(node, step) {
    const row = nodes.filter((one) => one.depth === node.depth && one.kept).sort((a, b) => a.start - b.start);
    return row[row.indexOf(node) + step];
  }
  svg.addEventListener("click", (event) => {
    const node = of.get(event.target.closest(".n"));
    if (node) { zoom(node); go(node); }
  });
  svg.addEventListener("mouseover", (event) => { const node = of.get(event.target.closest(".n")); if (node) tell(node); });
  svg.addEventListener("mouseleave", () => tell(at));
  svg.addEventListener("focusin", (event) => { const node = of.get(event.target.closest(".n")); if (node) { at = node; tell(node); } });
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: () => go(parent(at)), ArrowDown: () => go(child(at)), ArrowLeft: () => go(beside(at, -1)),
      ArrowRight: () => go(beside(at, 1)), Enter: () => zoom(at), " ": () => zoom(at), Home: () => { zoom(nodes[0]); go(nodes[0]); } };
    if (moves[event.key]) { event.preventDefault(); moves[event.key](); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { find.value = ""; mark(); zoom(nodes[0]); }
    if (event.key === "/" && event.target !== find) { event.preventDefault(); find.focus(); }
  });
  find.addEventListener("input", mark);
  out.addEventListener("click", () => zoom(nodes[0]));
  for (const chip of chips) chip.addEventListener("click", () => {
    const on = chip.getAttribute("aria-pressed") === "true";
    chips.forEach((one) => one.setAttribute("aria-pressed", "false"));
    chip.setAttribute("aria-pressed", String(!on));
    mark();
  });
  addEventListener("resize", draw);
  draw(); tell(nodes[0]);
})();
