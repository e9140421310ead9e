"""Names in scripts without capitals: Chinese, Japanese, Korean, Arabic, Hebrew, Hindi, Thai.

A name is one that a word announces or a title follows; lists of surnames and given names say where it begins.
Names that stand alone in a sentence are not found: their signs are those of ordinary words.
"""

import re
from collections.abc import Callable
from functools import cache

from prolepsis.control.redaction.name_lists import name_lists

MARK = "[NAME]"

_HAN, _HANGUL, _ARABIC, _HEBREW = "[\u4e00-\u9fff]", "[가-힣]", "[ء-ْ]", "[א-ת]"
_JAPANESE, _HINDI, _THAI = "[\u4e00-\u9fff々ぁ-んァ-ンー]", "[\u0900-\u0963\u0970-\u097f]", "[ก-๎]"
_SEARCHED = re.compile(r"[\u0590-\u05ff\u0600-\u06ff\u0900-\u097f\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]")


def without_script_names(text: str) -> str:
    """Return the text with `MARK` in place of announced names in scripts without capitals."""
    if text.isascii() or _SEARCHED.search(text) is None:
        return text
    for searched, pattern in _PATTERNS:
        if searched.search(text):
            text = pattern().sub(_marked, text)
    return text


def _marked(match: re.Match[str]) -> str:
    group = next(name for name, value in match.groupdict().items() if value)
    start, end = match.start(group) - match.start(), match.end(group) - match.start()
    return match[0][:start] + MARK + match[0][end:]


def _listed(script: str) -> str:
    """Return a pattern of the listed names, the longest first."""
    return "|".join(map(re.escape, sorted(name_lists().scripts[script], key=lambda name: (-len(name), name))))


@cache
def _chinese() -> re.Pattern[str]:
    surname = f"(?:{_listed('chinese')})"
    ends = (
        rf"(?={_HAN}{{0}}(?:[^\u4e00-\u9fff]|$|[想是在的和与與跟要也有先女小说說向将來来今昨已提申请請])|"
        rf"同学|教授|医生)"
    )
    given = rf"(?:{_HAN}{{1,2}}?{ends}|{_HAN}{{2}})"
    surely = (
        r"(?:我|他|她|名|人)?叫做?|名字[是叫为為]?|姓名[是为為]?|收[件货貨]人|联系人|聯絡人|经办人|申请人|"
        r"申請人|签名|簽名|署名"
    )
    maybe = r"我是|本人|患者|病人|客户|客戶|顾客|乘客|员工|同事|朋友|老公|老婆|儿子|女儿|丈夫|妻子"
    titles = r"先生|女士|小姐|太太|老师|老師|教授|医生|醫生|医师|经理|經理|主任|总监|律师|律師|护士|同学|师傅"
    return re.compile(
        rf"(?:{surely})[:：\s]{{0,2}}(?P<a>{surname}{given})|(?:姓名|氏名|收件人|联系人|聯絡人|{_HAN}{{2}}者名)[:：]\s?(?P<b>{_HAN}{{2,5}})(?!{_HAN})"
        rf"|(?:{maybe})[:：\s]{{0,2}}(?!应|那|和|时|都|从|能|有|是)(?P<c>{surname}{_HAN}{{1,2}}?){ends}|(?P<d>{surname}{_HAN}{{0,2}})(?=(?:{titles}))"
    )


@cache
def _japanese() -> re.Pattern[str]:
    surname = f"(?:{_listed('japanese')})"
    no_people = (
        "(?!(?:お客|皆|みな|患者|神|仏|王|奥|娘|息子|子供|お子|店員|業者|担当者|運転手|会社|企業|"
        "御社|各位|同|両|誰|どちら|何|医者|看護師|弁護士))"
    )
    ends = r"(?=です|でし|と[申い言]|の|は|が|を|に|も|様|さん|氏|[、。,，.\s]|$)"
    word = r"[\u4e00-\u9fff々]{1,4}[ 　]?[\u4e00-\u9fff々ぁ-んァ-ンー]{1,5}?"
    return re.compile(
        rf"(?:名前は|氏名は?|お名前は?|担当者?|患者の?|署名|本名は|宛名は?|差出人|(?:契約者|利用者|申込者|受取人|届け先|患者|保護者)(?:氏)?名)[:：\s]{{0,2}}"
        rf"(?P<a>{surname}[ 　]?{_JAPANESE}{{0,4}}?{ends}|(?<=[:：は\s])(?!何|誰){word}{ends}|"
        rf"[ァ-ンー]{{2,10}}[・ ]?[ァ-ンー]{{0,10}})"
        rf"|(?P<b>{surname}[ 　]?{_JAPANESE}{{0,4}}?)(?=\s?(?:さん|様|さま|氏|くん|君|ちゃん|先生|部長|課長|"
        rf"社長|係長|教授|殿|と申します|といいます))"
        rf"|(?<![\u4e00-\u9fffお御ご]){no_people}(?P<c>[\u4e00-\u9fff々]{{2,5}})(?<![者員師士手屋達方客々])(?=さん|氏(?!名)|くん|ちゃん|様(?!子))"
        rf"|(?<!{_JAPANESE})(?P<d>[\u4e00-\u9fff々]{{2,5}}[ぁ-ん]{{0,3}}|[ァ-ンー・]{{3,15}})(?=と申します|といいます|と言います)"
        rf"|私は(?P<e>{surname}{_JAPANESE}{{0,4}}?)(?=です)"
    )


@cache
def _korean() -> re.Pattern[str]:
    surname = f"(?:{_listed('korean')})"
    ends = r"(?= ?(?:입니다|이고|이에요|예요|이라고|라고|님|씨|이며|인데|이다)|[^가-힣]|$)"
    return re.compile(
        rf"(?:이름은|성함은|이름|성명|성함|담당자|신청인|수신인?|받는 사람|환자|저는|나는|고객)[:：\s]{{1,2}}"
        rf"(?P<a>{surname}{_HANGUL}{{1,2}}?{ends})"
        rf"|(?<!{_HANGUL})(?P<b>{surname}{_HANGUL}{{2}})(?= ?(?:씨|님|선생님|과장|부장|대리|사장|팀장|교수|박사|의사))"
        rf"|(?<!{_HANGUL})(?P<c>{surname}{_HANGUL}?)(?= (?:씨|과장님|부장님|대리님|사장님|팀장님|교수님|선생님))"
    )


@cache
def _arabic() -> re.Pattern[str]:
    given = f"(?:{_listed('arabic')})"
    word = rf"{_ARABIC}{{2,}}"
    stops = (
        r"(?:الرئيس|الوزير|المدير|المحترمة?|الذي|التي|من|في|على|لم|لن|لا|هو|هي|كان|كانت|قد|إلى|عن|مع|أن|"
        r"ي\w+|وأ\w+|وي\w+|ول\w+)\b"
    )
    more = rf"(?:\s(?:بن |بنت |عبد |أبو |آل )?(?!{stops}){word}){{0,2}}"
    surely = r"(?:ا|إ)سم[يهك]ا?|يدعى|تدعى"
    titles = r"السيدة?|الدكتورة?|الأستاذة?|المهندسة?|الآنسة"
    roles = r"المريضة?|العميلة?|الزبونة?|الموظفة?|الشاهدة?|الطالبة?|صديقي|أخي|أختي|زوجي|زوجتي"
    return re.compile(
        rf"\b(?:{surely}|{titles})(?:\s|\s?:\s?)(?P<a>(?!{stops}){word}{more})"
        rf"|\b(?:{roles})(?:\s|\s?:\s?)(?P<b>{given}\b{more})|الاسم(?: الكامل)?\s?:\s?(?P<c>{word}{more})"
    )


@cache
def _hebrew() -> re.Pattern[str]:
    given = f"(?:{_listed('hebrew')})"
    stops = r"(?:ו[א-ת]+|לא|הוא|היא|אני|של|את|על|עם|כי|גם)(?![א-ת])"
    more = rf"(?:[ -](?!{stops}){_HEBREW}{{2,}}){{0,2}}?"
    return re.compile(
        rf"(?<!{_HEBREW})(?:שמי|שמו|שמה|קוראים לי|שם(?: מלא)?\s?:)\s(?P<a>{_HEBREW}{{2,}}(?: "
        rf"(?!{stops}){_HEBREW}{{2,}})?)"
        rf"|(?<!{_HEBREW})(?:מר|גברת|גב['׳]|ד[\"״]ר|פרופ['׳]|עו[\"״]ד)\s(?P<b>{_HEBREW}{{2,}}(?: "
        rf"(?!{stops}){given}(?!{_HEBREW}))?)"
        rf"|(?<!{_HEBREW})(?:המטופלת?|הלקוחה?|החולה|העדה?|הנהג|אשתי|בעלי|אחי|אחותי)\s(?P<c>{given}(?!{_HEBREW})"
        rf"(?: (?!{stops}){_HEBREW}{{2,}})?{more})"
    )


@cache
def _hindi() -> re.Pattern[str]:
    listed = f"(?:{_listed('hindi')})"
    stops = rf"(?:है|हैं|को|का|की|के|ने|से|में|और|हूँ|हूं|जी|था|थी|कल|आज|नहीं|क्या)(?!{_HINDI})"
    word = rf"(?!{stops}){_HINDI}{{2,}}"
    return re.compile(
        rf"(?:(?:मेरा|उसका|उनका|पूरा) नाम|नाम\s?[:：])\s?(?P<a>{word}(?: {word}){{0,2}})"
        rf"|(?<!{_HINDI})(?:श्रीमती|श्रीमान|श्री|सुश्री|डॉ\.?|डॉक्टर)\s(?P<b>{word}(?: {word})?(?=\s|$|[,।]))"
        rf"|(?<!{_HINDI})(?:मरीज़|मरीज|रोगी|ग्राहक|गवाह|भाई|बहन|पति|पत्नी|दोस्त)\s(?P<c>{listed}(?!{_HINDI})(?: {word})?)"
        rf"|(?<!{_HINDI})(?P<d>{listed} {listed})(?!{_HINDI})"
    )


@cache
def _thai() -> re.Pattern[str]:
    given = f"(?:{_listed('thai')})"
    more = rf"(?: (?!ครับ|ค่ะ|คะ|และ|อยาก|เป็น|มา|อายุ|จะ|ขอ){_THAI}{{2,}})?"
    return re.compile(
        rf"(?:ผม|ดิฉัน|ฉัน|หนู|เขา|เธอ)ชื่อ\s?(?P<a>{_THAI}{{2,}}{more})|ชื่อ(?:-สกุล|-นามสกุล|จริง)\s?[:：]\s?(?P<b>{_THAI}{{2,}}{more})"
        rf"|(?:นางสาว|นาย|นาง|คุณ|ผู้ป่วย|ลูกค้า)\s?(?P<c>{given}{more})"
    )


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[], re.Pattern[str]]], ...] = (
    (re.compile("[\u3040-\u30ff]"), _japanese),
    (re.compile(_HAN), _chinese),
    (re.compile(_HANGUL), _korean),
    (re.compile(_ARABIC), _arabic),
    (re.compile(_HEBREW), _hebrew),
    (re.compile(_HINDI), _hindi),
    (re.compile(_THAI), _thai),
)
"""Letters of a script, and what finds names among them."""
