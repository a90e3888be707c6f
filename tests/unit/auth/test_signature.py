from __future__ import annotations

import pytest

from twinbus.auth.signature import Key

TEXT = "Endpoint=sb://contoso.example.net/;SharedAccessKeyName=root;SharedAccessKey=a2V5PT0="


def test_a_connection_string_says_host_rule_and_whether_tls_is_used() -> None:
    key = Key.of(TEXT)
    assert (key.host, key.rule, key.base) == (
        *("contoso.example.net", "root"),
        "https://contoso.example.net",
    )
    local = Key.of(
        "endpoint=sb://localhost:5672;" + TEXT.partition(";")[2] + ";UseDevelopmentEmulator=true"
    )
    assert local.base == "http://localhost:5672"


def test_a_key_may_have_equal_signs_in_it() -> None:
    assert Key.of(TEXT).secret == "a2V5PT0="


def test_a_signature_is_used_as_it_is() -> None:
    text = "Endpoint=sb://c.example.net;SharedAccessSignature=SharedAccessSignature sr=x&sig=y"
    assert Key.of(text).token() == "SharedAccessSignature sr=x&sig=y"


def test_no_key_is_shown() -> None:
    assert "a2V5" not in repr(Key.of(TEXT))


@pytest.mark.parametrize("text", ["", "rubbish", TEXT.partition(";")[2], TEXT.split(";Shared")[0]])
def test_what_is_no_connection_string_is_a_sentence_without_a_key(text: str) -> None:
    with pytest.raises(ValueError, match="a connection string") as refused:
        Key.of(text)
    assert "a2V5" not in str(refused.value)
