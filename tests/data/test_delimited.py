"""The reader of text files with tables, which data sets, partitions and files of groups share."""

import re

import pytest

from fullrank.data.delimited import Delimited, read_columns
from fullrank.errors import InputError


def written(folder, content):
    path = folder / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_delimiters_line_ends_a_byte_order_mark_and_quotes(delimiter, end, tmp_path):
    rows = [['"a ""x"""', "label"], ["1", " yes"], [" 2 ", f'  "n{delimiter}o"'], ["3", '"two\nlines"']]
    content = "\ufeff" + end.join(delimiter.join(row) for row in rows) + end + "  " + end
    table = Delimited(written(tmp_path, content))
    assert (table.columns, table.delimiter) == (('a "x"', "label"), delimiter)
    assert [*table] == [(2, ["1", "yes"]), (3, ["2", f"n{delimiter}o"]), (4, ["3", "two\nlines"])]


def test_empty_lines_are_counted_and_rows_of_empty_cells_are_rows(tmp_path):
    table = Delimited(written(tmp_path, "a,b\n\n1,2\n,\n3,4\n"))
    assert [*table] == [(3, ["1", "2"]), (4, ["", ""]), (5, ["3", "4"])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it is empty; its first row must name the columns"),
        ("\ufeff\n \r\n", "it is empty"),
        ("a,b\n1,2\n\n3\n", "row 4 has 1 cells, and the header 2; both must be equal"),
        ("a,b\n1,2\n3,4,5\n", "row 3 has 3 cells"),
        ("a,b,a\n1,2,3\n", 'two columns are called "a"; rename one of them'),
        ('a,b\n1,"2\n', "row 2 cannot be read (unexpected end of data)"),
        ('"a,b\n1,2\n', "row 1 cannot be read"),
        (b"a,b\r\n1,2\r\n3,\xe9\r\n", "row 3 is not UTF-8; save the file as UTF-8"),
        (b"a,b\n" + b"1,2\n" * 10_000 + b"\xff,2\n", "row 10002 is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "row 1 is not UTF-8"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_row(content, words, tmp_path):
    with pytest.raises(InputError, match="^" + re.escape(words)) as caught:
        [*Delimited(written(tmp_path, content))]
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(InputError, match="it cannot be read: Is a directory"):
        Delimited(tmp_path)


def test_columns_are_found_in_any_order_and_form(tmp_path):
    for content in ('x,b,a\n0, "2,5" ,1\n,,\n', '"x";"b";"a"\r\n"0";"2,5";"1"\r\n', "\ufeffb\ta\r2,5\t1\r"):
        path = written(tmp_path, content.replace('" ,', '",'))
        assert [row.values for row in read_columns(path, ("a", "b"))] == [("1", "2,5")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,c\n1,2\n", "it has no column b; its columns are a, c; get another"),
        ("a b\n1 2\n", "it has no column a; its columns are a b; get another"),
        ("a,b\n1\n", "row 2 has 1 cells"),
    ],
)
def test_errors_about_columns_name_the_file(content, words, tmp_path):
    path = written(tmp_path, content)
    with pytest.raises(InputError, match="^" + re.escape(f"{path}: {words}")):
        read_columns(path, ("a", "b"), "get another")
