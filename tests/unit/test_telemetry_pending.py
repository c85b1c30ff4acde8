"""Rows that wait for their file: whole on every way there, and what could not be written waits on."""

import duckdb
import numpy as np
import pytest

from sits.telemetry.duck import StoreError
from sits.telemetry.pending import Pending
from sits.telemetry.tables import SIGNALS, TABLES, checked


def signals(*names, value=1.0):
    n = len(names)
    return checked(
        "signals",
        {"run_id": ["r"] * n, "t_ns": range(n), "source": ["e"] * n, "name": names, "value": [value] * n},
    )


@pytest.fixture
def db():
    with duckdb.connect() as made:
        yield made


class File:
    """What `Pending.write` is given; refuses as often as it is told."""

    def __init__(self, db, refusals=0):
        self.db, self.refusals, self.rows, self.types = db, refusals, [], []

    def __call__(self, select):
        if self.refusals:
            self.refusals -= 1
            raise StoreError("No space left on device")
        try:
            answer = self.db.execute(select)
            self.types = [str(kind) for _, kind, *_ in answer.description]
            self.rows += answer.fetchall()
        except duckdb.Error as error:
            raise StoreError(str(error)) from error

    @property
    def names(self):
        return [row[3] for row in self.rows]


@pytest.mark.parametrize("asked", [(), (0,), (1,), (0, 1, 2)])
@pytest.mark.parametrize("batches", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_all_that_waits_is_written_once_and_in_order_whatever_is_asked_meanwhile(db, batches, asked):
    pending, file = Pending(db, duckdb.Error), File(db)
    for i, name in enumerate(batches):
        pending.add("signals", signals(name, name))
        if i in asked:
            ((found,),) = db.execute(f"SELECT count(*) FROM {pending.entered('signals')}").fetchall()
            assert found == pending.rows("signals") == 2 * (i + 1)
    pending.write("signals", file)
    assert file.names == [name for name in batches for _ in range(2)]
    assert (pending.rows("signals"), len(pending)) == (0, 0)
    assert db.execute(f"SELECT count(*) FROM {pending.entered('signals')}").fetchall() == [(0,)]
    pending.add("signals", signals("z"))
    pending.write("signals", file)
    assert file.names[-1] == "z"


@pytest.mark.parametrize("batches", [1, 2])
def test_what_could_not_be_written_waits_on(db, batches):
    pending, file = Pending(db, duckdb.Error), File(db, refusals=2)
    for i in range(batches):
        pending.add("signals", signals(f"n{i}"))
    while file.refusals:
        with pytest.raises(StoreError, match="No space"):
            pending.write("signals", file)
        assert pending.rows("signals") == batches
    pending.add("signals", signals("later"))
    pending.write("signals", file)
    assert file.names == [*(f"n{i}" for i in range(batches)), "later"]


def test_half_a_character_costs_itself_and_not_the_rows_beside_it(db):
    pending, file = Pending(db, duckdb.Error), File(db)
    pending.add("signals", signals("fine", "half \ud83d", "too"))
    pending.write("signals", file)
    assert file.names == ["fine", "half ?", "too"]


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_file_has_the_types_of_its_table_whichever_way_its_rows_went(db, table):
    empty = {"VARCHAR": "", "BLOB": b"x", "DOUBLE": 0.0}
    columns = checked(table, {name: [empty.get(kind, 0)] * 3 for name, kind in TABLES[table].items()})
    types = []
    for batches in (1, 2):
        pending, file = Pending(db, duckdb.Error), File(db)
        for _ in range(batches):
            pending.add(table, columns)
        pending.write(table, file)
        assert len(file.rows) == 3 * batches
        types.append(file.types)
    assert types[0] == types[1]


def test_nothing_of_the_database_is_left_behind(db):
    pending, file = Pending(db, duckdb.Error), File(db)
    before = db.execute("SHOW TABLES").fetchall()
    pending.add("signals", signals("a"))
    pending.write("signals", file)
    assert db.execute("SHOW TABLES").fetchall() == before
    assert np.array(file.rows, dtype=object).shape == (1, len(SIGNALS))
