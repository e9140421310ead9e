"""Queries of the next rows of a table, so many that a transaction stays small."""

from sqlalchemy import ColumnElement, Select, Table, func, select, tuple_


def first_of(
    place: ColumnElement[int],
    size: ColumnElement[int],
    which: ColumnElement[bool],
    *,
    most_bytes: int,
    most: int,
    last: bool = False,
) -> Select[tuple[int]]:
    """Return the query of the places of the first or last rows: `most`, or fewer with `most_bytes` but for one."""
    rows = select(place.label("place"), func.coalesce(size, 0).label("size")).where(which)
    first = rows.order_by(place.desc() if last else place).limit(most).subquery().c
    before = func.sum(first.size).over(order_by=first.place.desc() if last else first.place) - first.size
    counted = select(first.place, before.label("before")).subquery().c
    return select(counted.place).where(counted.before < most_bytes)


def page_of(
    query: Select[*tuple[object, ...]],
    table: Table,
    name: ColumnElement[str],
    after: str | None,
    most: int,
    *,
    ascending: bool = False,
) -> Select[*tuple[object, ...]]:
    """Return the query of the next page of a list by time, from behind the row that is called `after`."""
    place = (table.c.created_at, name)
    if after is not None:
        last = select(*place).where(name == after).scalar_subquery()
        query = query.where(tuple_(*place) > last if ascending else tuple_(*place) < last)
    return query.order_by(*(column.asc() if ascending else column.desc() for column in place)).limit(most)
