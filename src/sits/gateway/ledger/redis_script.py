"""`policy.lease` in Lua: one script, one balance, one step that nobody sees half of.

A balance is one hash: `limit`, `folded`, `expired`, `scarce`, `per`, a field `g:NAME` for each gift, and a field `l:HOLDER.LIFE`
for each lease, six whole numbers `granted used returned reserved seq until`.  Times are microseconds: Lua's numbers hold
whole ones up to 2^53, which microseconds since 1970 do not reach before the year 2255.  Redis's own clock dates leases and decides
which window runs, so the clocks of gateways do not matter.

Commands: `ask` (a line of a `LeaseAsk`), `give` (a gift), `release` (a holder is dead).  The tests play the same steps to this
script and to `policy.lease` and compare everything.
"""

ASK, GIVE, RELEASE = "ask", "give", "release"

LUA = """
local key, command, now, keep = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local per, limit = ARGV[4], tonumber(ARGV[5])
local scarce_us, forget_us, early_us, share = 1000000, 86400000000, 5000000, 2
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local function whole(x) return string.format('%.0f', x) end

local gifts, folded, expired, scarce, leases, changed = 0, 0, 0, 0, {}, {}
local stored = redis.call('HGETALL', key)
for i = 1, #stored, 2 do
  local field, value = stored[i], stored[i + 1]
  local kind, name = string.sub(field, 1, 2), string.sub(field, 3)
  if kind == 'l:' then
    local g, u, r, x, s, t = string.match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    leases[name] = {g = tonumber(g), u = tonumber(u), r = tonumber(r), x = tonumber(x), s = tonumber(s), t = tonumber(t)}
  elseif kind == 'g:' then gifts = gifts + tonumber(value)
  elseif field == 'folded' then folded = tonumber(value)
  elseif field == 'expired' then expired = tonumber(value)
  elseif field == 'scarce' then scarce = tonumber(value)
  elseif field == 'limit' and command ~= 'ask' then limit = tonumber(value)
  end
end

local function outstanding(lease) return math.max(0, lease.g - lease.u - lease.r) end

local function expire()
  for name, lease in pairs(leases) do
    if lease.t <= now then
      local out = outstanding(lease)
      if out > 0 then
        expired = expired + out
        lease.r = math.max(lease.r, lease.g - lease.u)
        changed[name] = true
      elseif now - lease.t > forget_us then
        folded = folded + lease.u
        leases[name] = nil
        redis.call('HDEL', key, 'l:' .. name)
      end
      lease.x = 0
    end
  end
end

local function room()
  local left = limit + gifts - folded
  for _, lease in pairs(leases) do left = left - lease.u - outstanding(lease) end
  return left
end

local function save()
  redis.call('HSET', key, 'per', per, 'limit', whole(limit), 'folded', whole(folded), 'expired', whole(expired),
    'scarce', whole(scarce))
  for name in pairs(changed) do
    local l = leases[name]
    if l ~= nil then
      redis.call('HSET', key, 'l:' .. name, table.concat(
        {whole(l.g), whole(l.u), whole(l.r), whole(l.x), whole(l.s), whole(l.t)}, ' '))
    end
  end
  if keep ~= '0' then redis.call('PEXPIREAT', key, keep) end
end

if command == 'give' then
  if redis.call('HSETNX', key, 'g:' .. ARGV[6], ARGV[7]) == 1 then save() end
  return now
end

if command == 'release' then
  local prefix, had = ARGV[6] .. '.', false
  for name, lease in pairs(leases) do
    if string.sub(name, 1, #prefix) == prefix and not string.find(name, '.', #prefix + 1, true) then
      lease.t = math.min(lease.t, now)
      changed[name], had = true, true
    end
  end
  if had then
    expire()
    save()
  end
  return now
end

local name, ttl, seq, granted = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local used, returned, reserved = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local need, want, begins, ends = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])
expire()
local lease = leases[name]
if lease == nil then
  lease = {g = 0, u = 0, r = 0, x = 0, s = 0, t = 0}
  leases[name] = lease
end
changed[name] = true
lease.t = math.max(lease.t, now + ttl)
if seq > lease.s then
  lease.s = seq
  lease.g = math.max(lease.g, granted)
  lease.u = math.max(lease.u, used)
  lease.r = math.max(lease.r, returned)
  lease.x = reserved
  if want > 0 and (ends == 0 or (begins - early_us <= now and now < ends)) then
    local free = room()
    if need > free then
      scarce = now + scarce_us
    else
      local holders = 0
      for _, other in pairs(leases) do if other.t > now then holders = holders + 1 end end
      local more = math.max(need, math.min(want, math.floor(free / (share * holders))))
      if more > 0 then lease.g = lease.u + lease.r + outstanding(lease) + more end
    end
  end
end
save()
local elsewhere = 0
for other, l in pairs(leases) do
  if other ~= name then elsewhere = elsewhere + math.max(0, outstanding(l) - l.x) end
end
local is_scarce = 0
if now < scarce then is_scarce = 1 end
return {now, lease.g, lease.u, lease.r, limit + gifts, math.max(0, room()), elsewhere, is_scarce}
"""
