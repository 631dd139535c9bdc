"""Reads and checks the rows of benches, as `benches/results/*.tsv` hold them.

    python3 benches/rows.py FILE…        fails if a file is not valid
    python3 benches/rows.py --columns    prints the row that names the columns

A file has one row per figure. Its first row names the columns. A line that begins with `#` belongs to
the rows below it, as `# key: value` or as a text.
"""

import math
import sys

# `median`, `p10` and `p90` are those of the figure; p10 and p90 are empty if it was taken once.
# `ratio` is the median of the ratios of the rounds: the figure divided by the rival's.
COLUMNS = ["name", "unit", "goal", "met", "median", "p10", "p90"]
COLUMNS += ["rival", "rival_median", "rival_p10", "rival_p90", "ratio", "ratio_p10", "ratio_p90"]
NUMBERS = [column for column in COLUMNS if column.split("_")[-1] in ("median", "p10", "p90", "ratio")]


def is_number(text):
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def problems(row):
    if row["name"] == "":
        yield "it has no name; name it in the bench that prints it"
    if row["met"] not in ("", "yes", "NO"):
        yield f'its cell "met" is "{row["met"]}"; expected yes, NO or nothing'
    if row["median"] == "":
        yield 'its cell "median" is empty; expected a number'
    for column in NUMBERS:
        if row[column] and not is_number(row[column]):
            yield f'its cell "{column}" is "{row[column]}"; expected a number'


def read(path):
    """Returns the rows by name, or exits with all errors. A row has the cells, its line, and as
    "head" the `# key: value` lines above it.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        sys.exit(f"cannot read {path}: {reason}; name a file of rows, such as those in benches/results")
    head, rows, errors = {}, {}, []
    is_below_head = False
    for at, line in enumerate(lines, 1):
        if line.startswith("#"):
            key, colon, value = line[1:].partition(":")
            if colon:
                head = {**head, key.strip(): value.strip()}
            continue
        cells = line.split("\t")
        if cells == COLUMNS:
            is_below_head = True
            continue
        if not is_below_head:
            sys.exit(f"cannot read {path}: line {at} is not the names of the columns, which are {', '.join(COLUMNS)};"
                     " write the file by benches/run --record or the GPU kit")
        if len(cells) != len(COLUMNS):
            errors.append(f"{path}:{at}: the row has {len(cells)} cells, not {len(COLUMNS)}; separate them by single tabs")
            continue
        row = dict(zip(COLUMNS, cells))
        errors += [f'{path}:{at}: the row "{row["name"]}": {problem}' for problem in problems(row)]
        if row["name"] in rows:
            errors.append(f'{path}:{at}: the name "{row["name"]}" is also that of line {rows[row["name"]]["line"]};'
                          " give the rows different names, or remove the older one")
        rows[row["name"]] = {**row, "line": at, "head": head}
    if not rows and not errors:
        errors.append(f"{path}: the file has no rows; write it by benches/run --record or the GPU kit")
    if errors:
        sys.exit("\n".join(errors))
    return rows


if __name__ == "__main__":
    if sys.argv[1:] == ["--columns"]:
        sys.exit(print(*COLUMNS, sep="\t"))
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        sys.exit("usage: python3 benches/rows.py FILE… | --columns")
    for path in sys.argv[1:]:
        print(f"{path}: {len(read(path))} rows")
