from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from rl_insight.hardware.exposition import PageReader, SeriesReader

NAMES = ["ray_node_gpus_utilization", "ray_node_gram_used", "ray_node_mem_used"]
OTHERS = ["ray_node_mem_used_host", "ray_component_rss_mb", "go_info", "ray_node", "ray_node_mem"]

text = st.text(alphabet=st.sampled_from(list('aZ0 _-.:/{}=,"\\\né€')), max_size=8)
label_names = st.sampled_from(["GpuIndex", "ip", "a_b", "_x", "Version"])
numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(10**18), 10**18),
)


def escaped(value):
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number_text(value):
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, float) and math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


@st.composite
def sample_lines(draw):
    name = draw(st.sampled_from(NAMES + OTHERS))
    labels = draw(st.dictionaries(label_names, text, max_size=4))
    blank = draw(st.sampled_from(["", "", "", " ", "\t"]))
    separator = draw(st.sampled_from([",", ",", ", ", " ,"]))
    pairs = separator.join(f'{key}="{escaped(value)}"' for key, value in labels.items())
    trailing = "," if labels and draw(st.booleans()) else ""
    braces = f"{{{pairs}{trailing}}}" if labels or draw(st.booleans()) else ""
    gap = draw(st.sampled_from([" ", " ", "  ", "\t"]))
    timestamp = draw(st.sampled_from(["", "", "", " 1700000000000"]))
    return f"{blank}{name}{braces}{gap}{number_text(draw(numbers))}{timestamp}{draw(st.sampled_from(['', '', ' ']))}"


comments = st.sampled_from(["# TYPE go_info gauge", "# HELP ray_node_mem_used ray_node_mem_used 5", "", "#"])


def comparable(samples):
    return sorted((name, sorted(labels.items()), repr(float(value))) for name, labels, value in samples)


def parsed_by_the_real_parser(page):
    found = []
    for line in page.split("\n"):
        for family in text_string_to_metric_families(line):
            found.extend((s.name, s.labels, s.value) for s in family.samples if s.name in NAMES)
    return found


@given(st.lists(st.one_of(sample_lines(), comments), max_size=12), st.booleans())
def test_agrees_with_the_real_parser(lines, ends_with_newline):
    page = "\n".join(lines) + ("\n" if ends_with_newline else "")
    reader = SeriesReader(NAMES)
    first = reader.read(page.encode())
    assert comparable(first) == comparable(parsed_by_the_real_parser(page))
    assert comparable(reader.read(page.encode())) == comparable(first)


@pytest.mark.parametrize(
    "line",
    [
        'ray_node_mem_used{a="b" 5',
        "ray_node_mem_used{} five",
        "ray_node_mem_used",
        'ray_node_mem_used{a="b"} 1_000',
        'ray_node_mem_used{a="b"}',
        'ray_node_mem_used{="b"} 1',
        "ray_node_mem_used{\xff} 1",
    ],
)
def test_bad_line_costs_that_line_alone(line):
    reader = SeriesReader(NAMES)
    page = f"ray_node_mem_used 1\n{line}\nray_node_gram_used 2\n"
    samples = reader.read(page.encode("latin-1"))
    assert [(sample.name, sample.value) for sample in samples] == [
        ("ray_node_mem_used", 1.0),
        ("ray_node_gram_used", 2.0),
    ]


@pytest.mark.parametrize(
    "line",
    [
        r'ray_node_mem_used{a="1\q\\\n\""} 1',
        'ray_node_mem_used{a="1"}1',
        'ray_node_mem_used {a="}"} 1 5',
        'ray_node_mem_used{ a = "1" , } 1 ',
        "ray_node_mem_used 1 2 3",
        "ray_node_mem_used 1e400",
        "ray_node_mem_used infinity",
        'ray_node_mem_used 1 # {b="c"} 2',
        'ray_node_mem_used{"é x"="1"} 1',
        'ray_node_mem_used\t{a="1"}\t1\r',
        "ray_node_mem_used{,} 1",
        '{"ray_node_mem_used",a="1"} 1',
        '{"ray_node_mem_used"} 1',
        '{a="1"} 1',
        'ray_node_mem_used{a="1", a="2"} 1',
        'ray_node_mem_used{a="1" b="2"} 1',
        'ray_node_mem_used{a="1",,b="2"} 1',
        'ray_node_mem_used{1a="1"} 1',
        'ray_node_mem_used{a="1"} 1 abc',
        "ray_node_mem_used 0x10",
        "ray_node_mem_used #1",
    ],
)
def test_unusual_lines_are_read_as_the_real_parser_reads_them(line):
    try:
        expected = parsed_by_the_real_parser(line)
    except (ValueError, IndexError, KeyError):
        expected = []
    assert comparable(SeriesReader(NAMES).read(line.encode())) == comparable(expected)


def test_what_is_kept_of_many_pages_is_that_of_the_last_one():
    reader = PageReader(SeriesReader(NAMES), lambda sample: sample.labels["ip"])
    for place in range(2_500):
        page = b'ray_node_mem_used{ip="%d"} 1\n' % place
        assert reader.read(page * (place % 3)) == [(str(place), 1.0)] * (place % 3)
    assert len(reader._known) == 2_499 % 3


# -- one target's pages, again and again


def read_as_one_target(pages):
    """Read pages with one `PageReader`; the meaning of a series is its name and labels."""
    reader = PageReader(SeriesReader(NAMES), lambda sample: (sample.name, sample.labels))
    return [[(*meaning, value) for meaning, value in reader.read(page)] for page in pages]


@given(st.lists(st.lists(st.one_of(sample_lines(), comments), max_size=5), min_size=2, max_size=4))
def test_pages_of_one_target_read_like_single_pages(pages):
    encoded = ["\n".join(lines).encode() for lines in pages]
    encoded += encoded  # each page comes again, in another place than before
    expected = [comparable(SeriesReader(NAMES).read(page)) for page in encoded]
    assert [comparable(found) for found in read_as_one_target(encoded)] == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('ray_node_mem_used{ip="a"} 1', 'ray_node_mem_used{ip="a"} 2.5e3', [2500.0]),
        ('ray_node_mem_used{ip="a"} 1', 'ray_node_mem_used{ip="b"} 2', [2.0]),
        ('ray_node_mem_used{ip="a"} 1', 'ray_node_mem_used{ip="a"} NaN', [math.nan]),
        ('ray_node_mem_used{ip="a"} 1', 'ray_node_mem_used{ip="a"} 3 1700000000000', [3.0]),
        ('ray_node_mem_used{ip="a"} 1', 'ray_node_mem_used{ip="a"} 1_000', []),
        ('ray_node_mem_used{ip="a"} 1', 'ray_node_mem_used{ip="a"} ', []),
        ('ray_node_mem_used{ip="a"} broken', 'ray_node_mem_used{ip="a"} 4', [4.0]),
        ('ray_node_mem_used_host{ip="a"} 1', 'ray_node_mem_used{ip="a"} 5', [5.0]),
        ('ray_node_mem_used{ip="a"} 1', 'ray_node_mem_used_host{ip="a"} 5', []),
        ('ray_node_mem_used{ip="a"} 1', "", []),
        ("ray_node_mem_used 1", "ray_node_mem_used 6", [6.0]),
    ],
)
def test_line_that_changed_since_the_last_page_is_read_again(before, after, expected):
    first, second = read_as_one_target([before.encode(), after.encode()])
    assert [repr(value) for _name, _labels, value in second] == [repr(value) for value in expected]
    assert len(first) <= 1
