"""The default redaction patterns: secrets are found, ordinary names and text are left alone."""

import re

import pytest

from rl_insight.config import InsightConfig

REDACTION = InsightConfig().redaction


def is_secret_key(key):
    return any(re.search(pattern, key, re.IGNORECASE) for pattern in REDACTION.key_patterns)


def is_secret_value(text):
    return any(re.search(pattern, text) for pattern in REDACTION.value_patterns)


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apikey",
        "apiKey",
        "X-Api-Key",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "aws_access_key_id",
        "private_key",
        "ssh-key",
        "token",
        "access_token",
        "accessToken",
        "HF_TOKEN",
        "auth-token",
        "refresh.token",
        "developer_token",
        "X-Amz-Security-Token",
        "api_token",
        "password",
        "PASSWD",
        "db_password",
        "userPassword",
        "passphrase",
        "db_pwd",
        "secret",
        "client_secret",
        "clientSecret",
        "authorization",
        "Proxy-Authorization",
        "cookie",
        "Set-Cookie",
        "cookies",
        "credentials",
        "aws_credential",
    ],
)
def test_names_of_secrets_are_found(key):
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "tokens",
        "num_tokens",
        "token_count",
        "max_tokens",
        "prompt_tokens",
        "tokens_per_second",
        "token_id",
        "token_ids",
        "eos_token",
        "pad_token",
        "max_new_tokens",
        "time_to_first_token",
        "seconds_per_token",
        "per_token",
        "first_token",
        "tokenizer",
        "tokenize",
        "key",
        "keys",
        "key_count",
        "keyboard",
        "monkey",
        "step",
        "reward",
        "session_id",
        "pwd",
        "author",
        "authored",
        "cookiecutter",
        "pass",
        "passed",
        "bypass",
        "state_lane_id",
        "role",
        "public_key_count",
    ],
)
def test_ordinary_names_are_left_alone(key):
    assert not is_secret_key(key)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc.DEF-123_456",
        "key=sk-abcdefghijklmnop1234",
        "sk-proj-abcdefgh_ijklmnop-1234",
        "hf_abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnopqrstuvwx",
        "gho_abcdefghijklmnopqrstuvwx",
        "github_pat_11ABCDEFG0abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdef",
        "xoxp-123456789012-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "postgres://user:pass@host/db",
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_secrets_inside_text_are_found(text):
    assert is_secret_value(text)
    assert is_secret_value(f"before {text} after")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "an ordinary sentence about a task-oriented-risk-model-with-dashes",
        "http://127.0.0.1:18080/path",
        "mailto:user@host",
        "half_precision hf_model",
        "the bearer of",
        "experiment=a/sample=1/session=2/traj=0",
        "0af7651916cd43dd8448eb211c80319c",
    ],
)
def test_ordinary_text_is_left_alone(text):
    assert not is_secret_value(text)
