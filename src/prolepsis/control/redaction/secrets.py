"""Secrets: by the prefixes that their issuers publish, by names of fields, and by the words before them.

Entropy is not used: audit entries are full of digests and ids, which have as much of it as keys.
"""

import re

MARK = "[SECRET]"

SHAPES = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\bplps_[0-9a-f]{12}_[A-Za-z0-9_-]{43}",  # our own
    r"\bsk-[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic and others
    r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"\bwhsec_[A-Za-z0-9+/=]{24,}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",  # AWS
    r"\bAIza[A-Za-z0-9_-]{35}",  # Google
    r"\bya29\.[A-Za-z0-9_-]{20,}",
    r"\bGOCSPX-[A-Za-z0-9_-]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{40,}",
    r"\bgl(?:pat|dt|rt|cbt|ptt)-[A-Za-z0-9_-]{20,}",  # GitLab
    r"\bhf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"\bnpm_[A-Za-z0-9]{36}",
    r"\bpypi-[A-Za-z0-9_-]{50,}",
    r"\bdckr_pat_[A-Za-z0-9_-]{20,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}",  # SendGrid
    r"\bdop_v1_[0-9a-f]{64}",  # DigitalOcean
    r"\bhv[sb]\.[A-Za-z0-9_-]{24,}",  # Vault
    r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web tokens
)
_SHAPES = re.compile("|".join(SHAPES), re.DOTALL)
_IN_URL = re.compile(r"(://[^\s/:@]*:)[^\s/@]+(@)")
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{12,}")
_FIELDS = (
    "password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|encryption[_-]?key|"
    "signing[_-]?key|authorization|cookie|credentials?|session(?:[_-]?id)?"
)
_NAMED = re.compile(rf"(?i)((?:{_FIELDS})[\"']?\s*[=:]\s*)(\"[^\"\n]+\"|'[^'\n]+'|(?![\w.]+\()[^\s,;\"'\[]\S*)")
_NAME = re.compile(rf"(?i)(?:.*[_-])?(?:{_FIELDS})")

_COUNTED = re.compile(r"(?i)(?:^|[_-])(?:per|first|next|last|each|bonus|eos|bos|pad|end)[_-]token$")
"""Fields of tokens that a model writes."""

_PASSWORDS = (
    r"pass(?:word|phrase|code)|pwd|pw|pin|kennwort|passwort|mot de passe|code (?:wi-?fi|d['’]accès)|"
    r"contraseña|clave|senha|"
    r"wachtwoord|hasło|lösenord|adgangskode|passord|salasana|парол[ьяюе]м?|(?:wlan|wifi|wi-fi)[ -](?:schlüssel|key)|"
    r"кодовое слово|кодове слово|κωδικός(?: πρόσβασης)?|συνθηματικό|şifre(?:m|si|miz|niz)?|parola(?:m|sı|"
    r"mız)?|hesl[oa]|"
    r"jelsz[óa]\w*|mật khẩu|kata sandi|password-nya"
)
_SHORT = r"p/?w|ww|mdp|pass|passwd|kw|pswd|psw"
"""Short words for passwords, which need a sign of equality or a colon behind them."""
_PASSWORDS_ELSEWHERE = (
    r"密码|密碼|口令|密钥|密鑰|令牌|パスワード|暗証番号|合言葉|秘密鍵|キー|トークン|비밀번호|암호|패스워드|비번|"
    r"كلمة (?:ال)?(?:سر|مرور)|الرقم السري|סיסמ(?:ה|א|ת)|पासवर्ड|कूटशब्द|รหัสผ่าน|รหัสลับ|พาสเวิร์ด"
)
_KEYS = (
    r"secret|token|key|schlüssel|clé|jeton|llave|clave|chave|chiave|sleutel|klucz|nyckel|bearer|session|cookie|hmac|"
    r"credentials?|signature"
)
_IS = (
    r"(?:is(?: currently| now| still)?|was|lautet|ist|war|est|était|es|era|è|é|to|je|är|er|on|είναι|là|"
    r"adalah|=|:|：|—|–)"
)
_OPEN = r"[\"'“„«‘`]?"
_VALUE = r"[^\s\"'“”„«»‘’`\[\]]*[^\s\"'“”„«»‘’`\[\].,;:!?)]"
_TOLD = re.compile(
    rf"(?i)\b(?P<cue>(?:{_PASSWORDS})"
    rf"(?:\b(?:(?P<filler>[ \w'’./?-]{{0,40}}?)(?:\s|[\s,]c['’]|(?=[:：]))|\s*)(?P<is>{_IS})(?:\s+|"
    rf"(?<=[:=：]))|\s+){_OPEN})"
    rf"(?P<value>{_VALUE})"
)
"""A password after words such as "the password of the router is"."""
_SET = re.compile(rf"(?i)((?<![^\W_])(?:{_SHORT})[\"']?\s{{0,2}}[=:]\s{{0,2}}{_OPEN})({_VALUE})")
_ON_COMMAND_LINE = re.compile(r"(\bsshpass -p ?|\bmysql\b[^\n]{0,60}? -p(?=\S))([^\s]+)")
_ELSEWHERE = re.compile(
    rf"((?:{_PASSWORDS_ELSEWHERE})[^\n!-~]{{0,16}}?(?:[A-Za-z-]{{2,8}}[^\n!-~]{{1,8}}?)?"
    r"(?:[:：=]|[^\w\s]|\s|[是为為はがのे는은이가כ])\s{0,2}[\"'“„«「『（(]?)([!-~]{4,64})"
)
_UNSAID = re.compile(
    rf"(?i)(\b(?:{_PASSWORDS})(?:\s+[^\W\d_]{{1,12}}){{1,3}}\s+{_OPEN})"
    rf"((?-i:(?=\S*\d)(?=\S*[A-ZÀ-ÖА-Я])(?=\S*[a-zß-öа-я])(?=\S*[_#!@$%&*])[^\s/.\"'()\[\]]{{8,64}}))(?=[\s,;.!?)\"']|$)"
)
"""A password behind the word and what it is for, without "is": only what nothing else looks like."""
_PHRASE = re.compile(
    rf"(?i)\b((?:pass ?phrase|(?:seed|recovery|backup|secret) (?:pass)?phrase|mnemonic|"
    rf"seed words)\b[ \w'’./-]{{0,40}}?(?:\s{_IS}|:)\s+{_OPEN})([^\W\d_]+(?: [^\W\d_]+){{2,23}})"
    rf"(?=[.,;!\"”\n]|$)"
)
_HEX = re.compile(r"\b(?:[0-9a-f]{32,}|[0-9A-F]{32,})\b")
_OF_SECRETS = re.compile(rf"(?i)(?:\b|_)(?:{_KEYS}|{_PASSWORDS})(?:\b|_|s\b|id\b)")
_OF_DIGESTS = re.compile(r"(?i)sha-?\d|md5|digest|checksum|commit|e-?tag|uuid|fingerprint|hash|revision")
_MIN_TOKEN = 8
_BEFORE = 48  # characters before a hexadecimal number in which a word says what it is
_NO_PASSWORDS_TEXT = """
    a about again already also always an and as at being case-sensitive changed changing correct das dass de der die
    different empty enabled encrypted expired expiring for forgotten good hashed important in incorrect invalid is it
    lost mandatory missing my never no none not now null ok okay old on only optional out please protected required
    reset rotated safe salted saved secure sent set short shared stored strong that the this to too true unknown valid
    very weak what where working wrong yours falsch abgelaufen vergessen nicht zu ungültig richtig sicher schwach faux
    expiré oublié trop pas perdu invalide incorrecta incorrecto errónea olvidada muy caducada sbagliata scaduta errata
    troppo non errada incorreta expirada muito não fout verlopen te niet verkeerd złe nieprawidłowe za fel inte för le
    la el il o un une una ein eine een ett en
"""
_NO_PASSWORDS = frozenset(_NO_PASSWORDS_TEXT.split())


def without_secrets(text: str) -> str:
    """Return the text with `MARK` in place of everything that looks like a secret."""
    text = _SHAPES.sub(MARK, text)
    text = _IN_URL.sub(rf"\1{MARK}\2", text)
    text = _HEADER.sub(rf"\1 {MARK}", text)
    text = _NAMED.sub(_named, text)
    text = _ON_COMMAND_LINE.sub(rf"\1{MARK}", _SET.sub(_set, text))
    if not text.isascii():
        text = _ELSEWHERE.sub(_elsewhere, text)
    text = _PHRASE.sub(_phrase, text)
    text = _TOLD.sub(_told, text)
    text = _UNSAID.sub(rf"\1{MARK}", text)
    return _HEX.sub(_hexadecimal, text)


def names_a_secret(name: str) -> bool:
    """Return whether a field of this name holds a secret: `api_key` does; `max_tokens` and `ms_per_token` do not."""
    return _NAME.fullmatch(name) is not None and _COUNTED.search(name) is None


def _named(match: re.Match[str]) -> str:
    """Redact the value of a named field; after "token: " prose and types stand as often as tokens."""
    name, value = match[1].lower(), match[2]
    is_quoted_or_set = value[0] in "\"'" or name.rstrip().endswith("=")
    is_prose = name.strip(" :=\"'").endswith(("token", "session", "cookie")) and not is_quoted_or_set
    if is_prose and (len(value) < _MIN_TOKEN or not any(c.isdigit() for c in value)):
        return match[0]
    return match[1] + MARK


def _set(match: re.Match[str]) -> str:
    """Redact the value behind `pw=`; behind "pass:" in prose stand ordinary words and counts."""
    is_password = not match[2].isalpha() and not match[2].isdigit() and "(" not in match[2]
    return match[1] + MARK if is_password or match[1].rstrip("\"'“„«‘` ").endswith("=") else match[0]


def _elsewhere(match: re.Match[str]) -> str:
    """Redact a password in Latin letters among others; a word alone is a name of something."""
    value = match[2].rstrip(".,;:!?)\"'")
    is_made_up = any(not c.isalpha() for c in value) and not value.startswith("[")
    return match[1] + MARK + match[2][len(value) :] if value and is_made_up else match[0]


def _phrase(match: re.Match[str]) -> str:
    first = match[2].split()[0].lower()
    return match[0] if first in _NO_PASSWORDS else match[1] + MARK


def _told(match: re.Match[str]) -> str:
    """Redact the value if it may be a password: the rest of "the password is too short" may not."""
    value, said = match["value"], match["is"]
    if value.lower() in _NO_PASSWORDS or "(" in value:
        return match[0]
    is_made_up = any(not c.isalpha() and c not in "'’-" for c in value) or not (value.islower() or value.istitle())
    is_mixed = is_made_up and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    ends_clause = match.string[match.end() : match.end() + 1] in ("", ".", ",", ";", "!", "?", "\n", '"', "'")
    if said is None or "?" in (match["filler"] or ""):
        is_password = is_mixed
    else:
        is_set = said in ":=：" and not (match["filler"] or "").strip()
        is_password = is_made_up or is_set or (ends_clause and said not in ":=：")
    return match["cue"] + MARK if is_password else match[0]


def _hexadecimal(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - _BEFORE) : match.start()].rpartition("\n")[2]
    is_secret = _OF_SECRETS.search(before) is not None and _OF_DIGESTS.search(before) is None
    return MARK if is_secret else match[0]
