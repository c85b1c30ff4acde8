"""The step-time law: known laws are found again, stalls and unequal machines do not bend it, and no time is lost."""

import msgspec
import numpy as np
import pytest

from sits.core.errors import ConfigError
from sits.predict.fit_steps import (
    COEFFICIENTS,
    RunBooks,
    StepLog,
    fit_steps,
    pause_means,
    with_pauses,
)

LAW = np.array([10.0, 4.0, 0.15, 0.8, 0.4, 0.001, 0.0001])


def made(run, count, dice, *, level=1.0, noise=0.05, stalls=0.0):
    chunks = np.where(dice.random(count) < 0.3, dice.integers(1, 5, count), 0).astype(float)
    prompts = chunks * dice.integers(20, 400, count)
    decodes = dice.integers(0, 17, count).astype(float)
    kv = decodes * dice.integers(50, 900, count)
    seen = prompts * (
        prompts / np.maximum(1, chunks) / 2
        + np.where(dice.random(count) < 0.5, 0, dice.integers(0, 900, count))
    )
    features = np.c_[np.ones(count), chunks > 0, prompts, chunks, decodes, kv, seen]
    elapsed = features @ LAW * level * np.exp(noise * dice.standard_normal(count))
    elapsed = elapsed + (dice.random(count) < stalls) * 300.0
    return StepLog(
        run=run,
        chunks=chunks,
        prompt_tokens=prompts,
        decodes=decodes,
        elapsed_ms=elapsed,
        kv_tokens=kv,
        prompt_kv=seen,
    )


def coefficients(law):
    return np.array([getattr(law, name) for name in COEFFICIENTS])


def predicted(law, log):
    mixed = log.chunks > 0
    x = np.c_[
        np.ones(len(log)), mixed, log.prompt_tokens, log.chunks, log.decodes, log.kv_tokens, log.prompt_kv
    ]
    factors = np.where(mixed, np.mean(law.mixed.factor), np.mean(law.decode.factor))
    beyond = np.where(mixed, np.mean(law.mixed.beyond_ms), np.mean(law.decode.beyond_ms))
    return x @ coefficients(law) * factors * np.mean(law.slow) * law.levels[log.run] + beyond


def test_a_known_law_is_found_again():
    dice = np.random.Generator(np.random.PCG64(1))
    law = fit_steps([made("a", 1000, dice), made("b", 1000, dice)], [1.0, 1.0])
    # What a prompt costs by itself and what the first one costs cannot be told apart so well; their sum can.
    sure = [0, 2, 4, 5, 6]
    assert coefficients(law)[sure] == pytest.approx(LAW[sure], rel=0.05)
    assert coefficients(law) @ [0, 1, 0, 2.5, 0, 0, 0] == pytest.approx(
        LAW @ [0, 1, 0, 2.5, 0, 0, 0], rel=0.15
    )
    assert law.median_error < 0.06
    assert law.steps == 2000


def test_stalls_do_not_bend_the_law_but_are_kept():
    dice = np.random.Generator(np.random.PCG64(2))
    log = made("a", 2000, dice, stalls=0.03)
    law = fit_steps([log], [1.0])
    assert coefficients(law)[[0, 2]] == pytest.approx(LAW[[0, 2]], rel=0.15)
    assert max(law.decode.beyond_ms) > 200
    assert predicted(law, log).sum() == pytest.approx(log.elapsed_ms.sum(), rel=0.03)


def test_the_sum_of_all_times_is_kept():
    dice = np.random.Generator(np.random.PCG64(3))
    logs = [made("a", 1500, dice, noise=0.4), made("b", 1500, dice, level=1.5, noise=0.4)]
    law = fit_steps(logs, [1.0, 1.0])
    for log in logs:
        assert predicted(law, log).sum() == pytest.approx(log.elapsed_ms.sum(), rel=0.05)


def test_the_level_of_each_run_is_told():
    dice = np.random.Generator(np.random.PCG64(4))
    logs = [made("quick", 1000, dice, level=0.8), made("slow", 1000, dice, level=1.2)]
    law = fit_steps(logs, [1.0, 1.0])
    assert law.levels["slow"] / law.levels["quick"] == pytest.approx(1.5, rel=0.05)
    assert law.level_spread() == pytest.approx(np.std(np.log([0.8, 1.2]), ddof=1), rel=0.1)


def test_a_slow_phase_is_kept_in_its_order():
    dice = np.random.Generator(np.random.PCG64(5))
    log = made("a", 2000, dice)
    slow = np.where((np.arange(2000) // 250) % 2 == 0, 1.0, 1.4)
    law = fit_steps([msgspec.structs.replace(log, elapsed_ms=log.elapsed_ms * slow)], [1.0])
    kept = np.array(law.slow)
    assert kept.max() / kept.min() > 1.25
    assert np.corrcoef(kept[:-50], kept[50:])[0, 1] > 0.5


def test_pauses_come_from_the_books():
    dice = np.random.Generator(np.random.PCG64(6))
    logs = [made(str(i), 800, dice, noise=0.0) for i in range(4)]
    law = fit_steps(logs, [1.0] * 4)
    books = []
    for log in logs:
        pause = 1.5 + 0.1 * log.decodes
        books.append(
            RunBooks(
                generation_ms=float((log.decodes * (log.elapsed_ms + pause)).sum()),
                tokens=float(log.decodes.sum()),
                first_ms=float("nan"),
                requests=1.0,
            )
        )
    law = with_pauses(law, logs, books)
    mean = np.mean([pause_means(log, book)[0] for log, book in zip(logs, books, strict=True)])
    decodes = np.mean([pause_means(log, book)[1] for log, book in zip(logs, books, strict=True)])
    assert law.pause_ms + law.pause_decode_ms * decodes == pytest.approx(mean, rel=0.05)


def test_books_of_other_steps_tell_nothing():
    log = made("a", 100, np.random.Generator(np.random.PCG64(7)))
    wrong = RunBooks(generation_ms=1e6, tokens=3.0, first_ms=float("nan"), requests=1.0)
    assert np.isnan(pause_means(log, wrong)).all()
    assert with_pauses(fit_steps([log], [1.0]), [log], [wrong]).pause_ms == 0.0


def test_too_few_steps_are_refused():
    with pytest.raises(ConfigError, match=r"12 engine steps.*too few") as error:
        fit_steps([made("a", 12, np.random.Generator(np.random.PCG64(8)))], [1.0])
    assert error.value.field == "steps"
    assert "at least" in error.value.hint
