"""Words that announce a name of a person, in a dozen languages.

The patterns are matched backwards from the word that they announce: a few characters show that none of them stands
there, where a search for their beginnings looks at all characters before the word.
"""

import re
from collections.abc import Sequence
from enum import IntEnum

import regex

MARK = "[NAME]"


class Cue(IntEnum):
    """Strength with which the words around a capitalised word announce a name."""

    NONE = 0
    WEAK = 1  # after "I am" or a role: names stand there, and other words
    GREETING = 2  # a greeting or request with a comma or "to" behind the word: even one unknown word is a name
    STRONG = 3  # after a title, "my name is" or the end of a letter


_TITLES = (
    r"(?:Mr|Mrs|Ms|Mx|Dr|Prof|Sr|Sra|Srta|Sig|Dott|Dhr|Mevr|Hr|Rev|Capt|Sgt|Lt|M)\.?|Miss|Sir|Dame|Professor|"
    r"Sig\.ra|[Dd]ott\.ssa|[Dd]ott\.|[Pp]rof\.ssa|[Hh]err|Herrn|Frau|Fräulein|[Mm]onsieur|[Mm]adame|[Mm]ademoiselle|"
    r"Mme|Mlle|[Dd]octeur|[Dd]octora?|[Ss]eñor(?:a|ita)?|[Ss]ignor(?:a|ina|e)?|[Ss]enhora?|[Dd]oña|[Dd]ona|[Mm]eneer|"
    r"[Mm]evrouw|[Dd]e heer|Pan|Pani|Pana|Panu|Panią|Fru|Fröken|Herra|Rouva|"
    r"[Гг]осподин[ау]?|[Гг]оспож[аеу]|[Гг]-(?:н|жа)|[Дд]октор|[Пп]ане|[Пп]ан[ауі]?|[Пп]ані|[Κκ]ύριος|[Κκ]ύριε|[Κκ]υρία|[Κκ]\.|[Κκ]ος|"
    r"Sayın|Bapak|Ibu|Pak|Bu|Ông|Bà|Pán|Pana|Paní|Úr|Domnul|Doamna"
)
_IS_TITLE = re.compile(rf"(?!M$)(?:{_TITLES})")
INTRODUCTIONS = (
    r"(?:my|her|his|their|full|maiden|whose|the) name(?: is| was|'s|:)|maiden name was|i am called|is called|"
    r"ich hei(?:ß|ss)e|hei(?:ß|ss)t|mein name ist|namens|call me|known as|goes by|je m['’]appelle|s['’]appelle|"
    r"mon nom est|me llamo|se llama|mi nombre es|mi chiamo|si chiama|il mio nome è|(?:o )?meu nome é|me chamo|"
    r"se chama|mijn naam is|ik heet|heet|nazywam się|nazywa się|mam na imię|jag heter|mitt namn är|jeg hedder|"
    r"jeg heter|nimeni on|"
    r"меня зовут|мо[её] имя|его зовут|е[её] зовут|мене звати|його звати|її звати|με λένε|ονομάζομαι|λέγομαι|"
    r"το όνομά μου είναι|"
    r"(?:benim )?adım|ismim|tôi tên là|tên tôi là|tôi là|nama saya|jmenuji se|jmenuje se|a nevem|mă numesc|"
    r"numele meu este"
)
_SIGN_OFFS = (
    r"(?:regards|sincerely|faithfully|truly|wishes|cheers|thanks|gr(?:ü|ue)(?:ß|ss)en?|gru(?:ß|ss)|cordialement|"
    r"salutations|saludos?|atentamente|saluti|atenciosamente|cumprimentos|abraços|groet(?:en|jes)?|poważaniem|"
    r"pozdrawiam|hälsningar|hilsen|terveisin|"
    r"уважением|пожеланиями|повагою|εκτίμηση|χαιρετισμούς|saygılarımla|trân trọng|hormat saya|pozdravem|"
    r"üdvözlettel)[,.!]?\s*\n\s*"
)
_FIELDS = (
    r"(?:first|last|full|family|given|middle)[_ ]?names?|first|last|surname|vorname|nachname|prénom|nom de famille|"
    r"apellidos?|cognome|sobrenome|achternaam|nazwisko|patient|author|signed(?: by)?|"
    r"фио|имя|фамилия|ім['’]я|прізвище|получатель|όνομα|ονοματεπώνυμο|ad(?:ı)? soyad(?:ı)?|họ (?:và )?tên|"
    r"nama(?: lengkap)?|jméno"
)
_STRONG = regex.compile(
    rf"(?r)(?:\b(?:{_TITLES}) |(?i:\b(?:{INTRODUCTIONS}) |{_SIGN_OFFS}|\b(?:{_FIELDS})[\"']?\s?[:=>]\s?[\"']?))$"
)
_SELVES = (
    r"i am|i['’]m|i,|this is|ich bin|hier ist|hier spricht|je suis|soy|sono|eu sou(?: [oa])?|sou(?: [oa])?|ik ben|"
    r"jestem|jag är|jeg er|thanks,|danke,|merci,"
)
_ROLES = (
    r"patient(?:e|in|en)?|pati[eë]nt|paciente|paziente|pacjent(?:ka)?|witness|zeugin|zeuge|témoin|testigo|testimone|"
    r"testemunha|client|customer|kunde|kundin|cliente?|klant|klient|driver|defendant|plaintiff|kläger(?:in)?|"
    r"candidate|interviewer|applicant|author|colleague|kolleg(?:e|in)|kolega|collègue|neighbou?r|voisine?|"
    r"nachbar(?:in)?|employee|nurse|lawyer|buyer|seller|sister|brother|son|daughter|wife|husband|bruder|schwester|"
    r"sohn|tochter|frère|sœur|fils|fille|hermano|hermana|hijo|hija|fratello|sorella|irmão|irmã|broer|zus|brat|"
    r"siostra|name|nom|nombre|nome|naam|imię|namn|user|benutzer|contact|kontakt|replied|said|says|told|ask|asked|"
    r"tell|met|"
    r"пациент(?:ка|ки|а)?|пацієнт(?:ка)?|клиент(?:ка)?|клієнт(?:ка)?|свидетель|сотрудник|ασθενής|πελάτης|hasta|müşteri|"
    r"pasien|pelanggan|bệnh nhân|khách hàng"
)
_WEAK = regex.compile(
    rf"(?ri)\b(?:(?:{_SELVES}) |(?:{_ROLES})[\"']?[,:]? [\"']?|(?<=[\"'])(?:name|user|customer)[\"']: ?[\"'])$"
)
_GREETING = regex.compile(
    r"(?ri)(?:^|[\n.!?,] ?|\b(?:so|now) )(?:dear|hi|hello|hey|hallo|lieber?|bonjour|ch(?:er|ère)|salut|hola|"
    r"estimad[oa]|querid[oa]|ciao|gentile|car[oa]|olá|oi|prezad[oa]|beste|hoi|cześć|drog[ia]|hej|kära?|"
    r"уважаем(?:ый|ая)|дорог(?:ой|ая)|привет|здравствуйте,?|шановн(?:ий|а)|привіт|αγαπητ[έή]|γεια σου|merhaba|sevgili|"
    r"chào|halo|dobrý den,?|ahoj|milá|milý) $"
)
_REQUEST = regex.compile(r"(?ri)\b(?:ask|asked|tell|told|remind|reminded|informed|paged) $")
_ENDS_GREETING = re.compile(r"\s{0,8}[,!:\n]")
_ENDS_REQUEST = re.compile(r" (?:to|if|whether|that|about|why|when)\b")
_NOT_GREETED_TEXT = """
    all colleagues customer customers everyone everybody folks friend friends guys ladies madam sir team there world
    you alle allerseits kollegen leute welt zusammen tous monde équipe todos equipo mundo tutti mondo equipe iedereen
"""
NOT_GREETED = frozenset(_NOT_GREETED_TEXT.split())
ENDS_AS_SURNAMES = re.compile(
    r".{2,}(?:ova?|eva?|sk[aiy]|skaya|ck[ai]|cz[ay]k|wicz|vi[cć]|ić|ss[eo]n|sen|d[oó]ttir|o[gğ]lu|enko|shvili|[ai]dze|"
    r"yan|poulos|opoulou|akis|escu|str[oö]m|[qk]vist|quist|lund|g(?:aar|år)d|[aäi]nen|mann|ez)"
)
_BEFORE = 40  # characters before a word that may announce it


def is_title(word: str) -> bool:
    return _IS_TITLE.fullmatch(word) is not None


def cue(text: str, start: int, end: int) -> Cue:
    """Return how strongly a run of capitalised words from `start` to `end` is announced as a name."""
    before = text[max(0, start - _BEFORE) : start]
    befores = (before, before[:-1]) if before.endswith("\n") else (before,)  # the word may begin a line
    if any(map(_STRONG.match, befores)):
        return Cue.STRONG
    for announces, ends in ((_GREETING, _ENDS_GREETING), (_REQUEST, _ENDS_REQUEST)):
        if any(map(announces.match, befores)):
            return Cue.GREETING if ends.match(text, end) else Cue.WEAK
    return Cue.WEAK if any(map(_WEAK.match, befores)) else Cue.NONE


def marked(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the text with `MARK` in place of spans, which are in order."""
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    return MARK.join(text[end:start] for end, start in zip(ends, starts, strict=True))
