"""Postal addresses in the forms of ten languages: street with number, and the postcode and town behind them."""

import re

MARK = "[ADDRESS]"

_UPPER, _LOWER = "[A-ZÀ-ÖØ-ÞĄ-Ž]", "[a-zß-öø-ÿą-ž]"
_CAP = rf"{_UPPER}[\w'’.-]{{0,40}}"
_SMALL = (
    r"(?:(?:d[aeiou]s?|del|della|delle|dei|los|las|la|le|les|van|von|der|den|het|of|the|and|e|y|i|du|aux?|sur|am|zum) |"
    r"(?:dell|l|d)['’])"
)
_NAME = rf"{_SMALL}{{0,3}}{_CAP}(?: {_SMALL}{{0,3}}{_CAP}){{0,3}}"
_NUMBER = r"\d{1,5}(?:[ -]?(?:bis|ter|quater)\b|[a-zA-Z]\b|[/-]\d{1,4}[a-zA-Z]?)?"
_TOWN = rf"{_UPPER}{_LOWER}[\w'’.-]{{0,40}}(?:[ -]{_SMALL}{{0,3}}{_UPPER}{_LOWER}[\w'’.-]{{0,40}}){{0,3}}"
_POSTCODE = r"(?:[A-Z]{1,2}-)?\d{2}(?:\d{2,3}|-\d{3}|\d{2}-\d{3}|\d{3}-\d{3}|\d ?\d{2}|\d{2} [A-Z]{2})"
_UNITS = r"apartment|apto|apt|suite|ste|unit|flat|floor|piso|esc|apartado|int|interno|lok|m|top|tür|whg|étage|bât"
_UNIT = (
    rf"(?i:, ?(?:{_UNITS})\b\.? ?[\w-]+"
    r"|, ?\d{1,2}\.? ?(?:og|eg|ug|stock|º|ª|°|andar|piso|étage)\.?(?: ?[A-Za-z](?!\w))?)?"
)
_IN_TOWN = rf"(?:, ?|\s){_POSTCODE} {_TOWN}"
_REST = rf"{_UNIT}(?:{_IN_TOWN})?"
_ENGLISH_REST = (
    rf"(?:, {_TOWN})?(?:,? [A-Z]{{1,2}}\d[A-Z\d]? ?\d[A-Z]{{2}}\b"
    rf"|, {_TOWN},? [A-Z]{{2}} \d{{5}}(?:-\d{{4}})?|,? [A-Z]{{2}} \d{{5}}(?:-\d{{4}})?)?"
)
_ENGLISH = (
    r"(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Close|Crescent|Court|Ct|Boulevard|Blvd|Way|Place|Pl|Square|Sq|"
    r"Terrace|Highway|Hwy|Parkway|Pkwy|Gardens|Grove|Mews|Row|Walk|Circle|Cir|Trail|Alley|Quay|Hill|Park|View|Rise)"
)
_GERMAN = r"(?:straße|strasse|str\.|weg|gasse|allee|platz|damm|ufer|promenade|Straße|Platz|Allee|Weg)"
_GERMAN_PLACES = r"(?:Am|An der|An den|Auf dem|Auf der|Im|In der|In den|Unter den|Zum|Zur|Beim|Hinter dem)"
_FRENCH = r"(?:rue|avenue|av\.|boulevard|bd|place|impasse|allée|chemin|quai|cours|route|square|passage|faubourg)"
_ROMANCE = (
    r"(?:[Cc]alle|[Cc]/|[Aa]venida|[Aa]vda\.?|[Aa]v\.|[Pp]laza|[Pp]aseo|[Cc]amino|[Cc]arretera|[Rr]onda|[Tt]ravesía|"
    r"[Vv]ia|[Vv]iale|[Pp]iazza|[Pp]iazzale|[Cc]orso|[Ll]argo|[Vv]icolo|[Ss]trada|[Rr]ua|[Tt]ravessa|[Pp]raça|"
    r"[Ee]strada|[Aa]lameda|[Cc]arrer|[Pp]laça)"
)
_DUTCH = r"(?:straat|laan|weg|gracht|plein|kade|dijk|singel|dreef|steeg)"
_NORDIC = r"(?:gatan|vägen|gata|väg|torget|gränd|stigen|gade|vej|vejen|gata|vei|veien|katu)"
_ALSO_ENDS_WORDS = r"(?:ring|markt|hof|gate|tie|allé)"
"""Streets end so, and other words too: only with a postcode."""
_FORMS = (
    rf"P\.? ?O\.? Box \d+{_ENGLISH_REST}",
    rf"(?:(?:Flat|Apt|Apartment|Unit|Suite) \w{{1,8}}, )?\d{{1,5}}[A-Za-z]? (?:[NSEW]{{1,2}}\.? )?(?:{_CAP} ){{1,4}}"
    rf"{_ENGLISH}\b\.?{_UNIT}{_ENGLISH_REST}",
    rf"(?:\b{_CAP}[ -])?\b[\w-]{{0,40}}{_GERMAN} \d{{1,4}} ?[a-z]?\b{_REST}",
    rf"\b{_GERMAN_PLACES} (?:{_CAP} ){{1,2}}\d{{1,4}} ?[a-z]?\b{_REST}",
    rf"\b{_NUMBER},? {_FRENCH} {_NAME}{_REST}",
    rf"\b{_ROMANCE} ?{_NAME}(?:,? ?n[.º°]{{1,2}} ?|, ?| ){_NUMBER}{_REST}",
    rf"\b[A-Z]\w{{0,40}}{_DUTCH} {_NUMBER}{_REST}",
    rf"\b(?:ul|al|pl|os)\. ?{_NAME} {_NUMBER}{_REST}",
    rf"\b{_UPPER}\w{{0,40}}{_NORDIC} {_NUMBER}{_REST}",
    rf"\b{_UPPER}\w{{0,40}}{_ALSO_ENDS_WORDS} {_NUMBER}{_UNIT}{_IN_TOWN}",
    rf"\b(?:{_CAP} ){{1,3}}(?:Caddesi|Cad\.|Sokak|Sokağı|Sok\.|Sk\.|Bulvarı|Mahallesi,?)(?: {_CAP} (?:Sokak|"
    rf"Sokağı|Caddesi))?,? "
    rf"(?:No ?[:.]? ?)?\d{{1,4}}(?:/\d{{1,4}})?(?:,? {_TOWN})?",
    rf"\b(?:[Ss]ố )?\d{{1,4}}[A-Za-z]?(?:/\d{{1,4}})? (?:đường|phố|ngõ|hẻm) {_CAP}(?: {_CAP}){{0,3}}",
    rf"\b(?:Jl\.?|Jalan|Gg\.) {_CAP}(?: {_CAP}){{0,3}},? (?:[Nn]o\.? ?)?\d{{1,4}}[A-Za-z]?(?:, {_TOWN})?",
    rf"\b{_CAP}(?: {_CAP})? (?:utca|út|tér|körút|ulice|náměstí|třída) \d{{1,4}}(?:/\d{{1,4}})?",
    rf"\b(?:[Ss]trada|[Ss]tr\.|[Bb]ulevardul|[Uu]lice|[Nn]áměstí) {_CAP}(?: {_CAP}){{0,2}},? "
    rf"(?:nr\. ?)?\d{{1,4}}(?:/\d{{1,4}})?",
)
_ADDRESS = re.compile("|".join(_FORMS))
_ANNOUNCED = (
    r"(?<!IP )(?<!MAC )(?i:(?:\b(?:my|his|her|their|our|new|home|billing|shipping|delivery|postal|street) )?"
    r"\baddress(?: is|:)|\blives? at|\bresides? at|\badresse(?: lautet| ist| est| ?:)|"
    r"\bwohn(?:t|e|haft)(?: in| an)?(?: der| dem)?|j['’]habite(?: au)?|"
    r"\b(?:dirección|domicilio|indirizzo|endereço|morada|adres|adress)(?: es| è| é| is|:))\s+"
)
_LINE = rf"(?:\d{{1,6}}[A-Za-z]?,? {_CAP}(?: {_CAP}){{0,4}}|(?:{_CAP} ){{1,4}}\d{{1,5}}[A-Za-z]?\b)"
_TOLD = re.compile(
    rf"({_ANNOUNCED}){_LINE}(?:,? ?(?i:{_UNITS})\b\.? \w+)*(?:, ?(?:{_POSTCODE} )?{_TOWN}(?: \d{{4,5}})?){{0,3}}"
)
_HAS_NUMBER = re.compile(r"\d")


def without_addresses(text: str) -> str:
    """Return the text with `MARK` in place of postal addresses."""
    if not _HAS_NUMBER.search(text):
        return text
    return _TOLD.sub(rf"\1{MARK}", _ADDRESS.sub(_marked, text))


def _marked(match: re.Match[str]) -> str:
    return MARK + match[0][len(match[0].rstrip(" ,.")) :]
