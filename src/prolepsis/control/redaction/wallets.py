"""Addresses of wallets: by check digits, by distinct shape, or by the words before them."""

import re
from functools import cache
from types import ModuleType

MARK = "[WALLET]"

_BASE58 = "[1-9A-HJ-NP-Za-km-z]"
_BITCOIN = re.compile(rf"\b(?:(?:bc|tb)1[02-9ac-hj-np-z]{{11,87}}|[13]{_BASE58}{{25,34}})\b")
_SHAPED = re.compile(
    rf"\b(?:0x[0-9a-fA-F]{{40}}|ltc1[02-9ac-hj-np-z]{{11,87}}|addr1[02-9ac-hj-np-z]{{50,110}}|[48]{_BASE58}{{94}})\b"
)
_TOLD = re.compile(
    rf"(?i)(\b(?:wallet|bitcoin|btc|eth(?:ereum)?|ltc|litecoin|doge(?:coin)?|xrp|ripple|sol(?:ana)?|trx|tron|usdt|usdc|"
    rf"monero|xmr|ada|cardano|crypto|кошел[её]к\w*|cartera|portefeuille|portafoglio|carteira)\b[^\n]{{0,40}}?|"
    rf"(?:钱包|錢包|ウォレット|지갑)[^\n]{{0,20}}?)(?<!\w)((?-i:(?=\w*\d)(?=\w*[a-z])(?=\w*[A-Z]){_BASE58}{{25,64}}))\b"
)


def without_wallets(text: str) -> str:
    """Return the text with `MARK` in place of addresses of wallets."""
    text = _SHAPED.sub(MARK, _BITCOIN.sub(_if_valid, text))
    return _TOLD.sub(rf"\1{MARK}", text)


def _if_valid(match: re.Match[str]) -> str:
    is_bech32_or_valid = match[0].startswith(("bc1", "tb1")) or _bitcoin().is_valid(match[0])
    return MARK if is_bech32_or_valid else match[0]


@cache
def _bitcoin() -> ModuleType:
    from stdnum import bitcoin

    return bitcoin
