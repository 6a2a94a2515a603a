"""Make the tables of the example: three clinics and a small public table, all drawn at random.

Each row is a visit: age, blood pressure (sometimes missing), sex, department, date, and whether the patient
came back within a month.
"""

import csv
import datetime
import math
import random
from pathlib import Path


def rows(seed, count, older=0.0, pressure_known=0.9):
    draw = random.Random(seed)
    for _ in range(count):
        age = min(95, max(18, round(draw.gauss(52 + older, 16))))
        pressure = draw.gauss(120 + (age - 50) / 3, 12)
        sex = draw.choice("fm")
        department = draw.choices(("surgery", "medicine", "eyes"), (3, 5, 1))[0]
        visit = datetime.date(2025, 1, 1) + datetime.timedelta(days=draw.randrange(365))
        risk = (age - 55) / 10 + (pressure - 125) / 12 + (1.5 if department == "medicine" else -1.0)
        returned = draw.random() < 1 / (1 + math.exp(-risk))
        known = draw.random() < pressure_known
        yield age, f"{pressure:.1f}" if known else "", sex, department, visit, "yes" if returned else "no"


def write(file, rows, separator=","):
    with Path(file).open("w", newline="") as out:
        table = csv.writer(out, delimiter=separator)
        table.writerow(("age", "pressure", "sex", "department", "visit", "returned"))
        table.writerows(rows)


write("public.csv", rows(0, 200))
write("north.csv", rows(1, 400))
write("south.csv", rows(2, 300, older=6.0), separator=";")
write("east.csv", rows(3, 250, older=-5.0, pressure_known=0.7), separator="\t")
