"""A table of visits to three clinics."""

import csv
import random

import pytest

HEADING = ("clinic", "age", "pressure", "sex", "visit", "sick")


def visits(seed=0, count=90):
    """Rows with numbers, categories, dates and gaps; older patients are more often sick."""
    draw = random.Random(seed)
    for age in draw.sample(range(200, 900), count):  # in tenths of a year, each once
        age /= 10
        pressure = "" if draw.random() < 0.2 else f"{draw.gauss(120, 15):.2f}"
        sex = draw.choice(["f", "m", "NA"])
        day = f"2024-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"
        clinic = draw.choice(["north", "south", "east"])
        yield clinic, age, pressure, sex, day, "yes" if age + draw.gauss(0, 10) > 55 else "no"


@pytest.fixture
def write_visits():
    """Return a function that writes such a table."""

    def write(file, rows=None, separator=",", heading=HEADING):
        with file.open("w", newline="") as out:
            table = csv.writer(out, delimiter=separator)
            table.writerow(heading)
            table.writerows(visits() if rows is None else rows)
        return str(file)

    return write
