"""The layout of JSON files."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.json_text import json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_is_json(value):
    assert json.loads(json_text(value)) == value


def test_layout():
    text = json_text({"version": 1, "vars": [{"a": [1, 2]}, {"a": []}], "none": []})
    assert text == '{\n  "version": 1,\n  "vars": [\n    {"a": [1, 2]},\n    {"a": []}\n  ],\n  "none": []\n}\n'
