"""Which keys of a configuration look like secrets."""

import pytest

from nsml.spec.reported_config import is_secret


@pytest.mark.parametrize(
    "name",
    [
        *("password", "db.password", "dbPassword", "DB_PASSWORD", "dbpassword", "passphrase"),
        *(
            "api_key",
            "wandb.apiKey",
            "API_KEY",
            "apikey",
            "openai_api_key2",
            "AWS_SECRET_ACCESS_KEY",
        ),
        *("token", "hub_token", "hf.token", "authToken", "client_secret", "secret.inner"),
        *("credentials", "private-key", "ssh key"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("lr", "key", "keys", "key_dim", "monkey", "primary_key", "sort.key"),
        *("max_tokens", "num_tokens", "tokenizer", "tokenizer.name", "token_count"),
        *(
            "eos_token",
            "pad_token",
            "bosToken",
            "mask_token",
            "pad_token_id",
            "author",
            "pass_through",
        ),
        *("", "compass", "bypass", "secretary"),
    ],
)
def test_names_of_other_values(name: str) -> None:
    assert not is_secret(name)
