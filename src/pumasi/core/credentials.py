"""Which files look like credentials: by their names, and by how they begin. Pure.

The lists are short on purpose: a file that is left out by mistake costs a run. So names stand here that mean nothing
else, and a private key is recognized by its text wherever it is.
"""

from __future__ import annotations

import re

NAMES = """
.env .env.* *.env !.env.example !.env.sample !.env.template .envrc
.ssh/ .aws/ .azure/ .gnupg/ .kube/ .kaggle/ **/.config/gcloud/ **/.config/gh/ **/.docker/config.json .dockercfg
.netrc _netrc .pgpass .pypirc .npmrc .git-credentials .htpasswd .s3cfg .boto .vault-token
*.pem *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk id_rsa id_dsa id_ecdsa id_ed25519
kubeconfig *.kubeconfig secrets.json secrets.toml secrets.yaml secrets.yml
kaggle.json client_secret*.json application_default_credentials.json
**/.huggingface/token **/.cache/huggingface/token **/.streamlit/secrets.toml **/wandb/credentials.json
"""
"""As .gitignore would have them, whatever the case, but those without a slash at their end name files only."""
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])+"
    rb"(?:[\w-]+: [^\n\\]*(?:\s|\\[nr])+)*[A-Za-z0-9+/=]{32,}"
)
"""With some of the key itself: source code and documentation name the header alone. Also within YAML, and with its
lines joined by \\n, as JSON, TOML and source code have it."""
_KEY_IN_JSON = re.compile(rb'"private_key"\s*:\s*"-----BEGIN ')
_IS_KUBECONFIG = re.compile(rb'^[ \t]*kind[ \t]*:[ \t]*Config\b|"kind"\s*:\s*"Config"', re.MULTILINE)
_KUBE_SECRET = re.compile(rb'(?:^[ \t-]*|")(?:client-key-data|token|password)"?[ \t]*:[ \t]*[^\s#]', re.MULTILINE)
_CLOUD_KEY = re.compile(rb"aws_secret_access_key[\"'\])]*[ \t]*[=:,][ \t]*[\"']?[A-Za-z0-9+/]{40}", re.IGNORECASE)
_ONE_WORD = re.compile(rb"\s*\S{32,}\s*")


def has_credentials(path: str, head: bytes) -> bool:
    """`head` is the beginning of the file."""
    return (
        (b"PRIVATE KEY" in head and _PRIVATE_KEY.search(head) is not None)
        or (b'"private_key"' in head and _KEY_IN_JSON.search(head) is not None)
        or (b"Config" in head and _is_kubeconfig(head))
        or _CLOUD_KEY.search(head) is not None
        or (path.lower().endswith(".key") and _is_key(head))
    )


def _is_kubeconfig(head: bytes) -> bool:
    return b"users" in head and all(each.search(head) for each in (_IS_KUBECONFIG, _KUBE_SECRET))


def _is_key(head: bytes) -> bool:
    """The content of a *.key: nothing that people can read, or one long word. An answer key is neither."""
    is_binary = b"\0" in head or "\ufffd" in head.decode("utf-8", "replace")[:-1]
    return is_binary or _ONE_WORD.fullmatch(head) is not None
