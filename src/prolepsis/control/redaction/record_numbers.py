"""Numbers under which others keep a person: patients, customers, members, cases, identity cards; by the words before.

National ids with check digits of a distinct shape are in `national_ids`.
"""

import re
from functools import partial

from prolepsis.control.redaction.national_ids import MARK, marked_number

_OF = (
    r"medical record|patient|chart|member(?:ship)?|policy|customer|client|account|employee|staff|student|"
    r"case|claim|file|"
    r"badge|enrol?lment|insurance|beneficiary|subscriber|prescription"
)
_ENGLISH = rf"(?:{_OF})[ _-]?(?:number|num|no|nr|id|#)\b\.?|mrn"
_GERMANIC = (
    r"(?:patienten|kunden|versicherungs|mitglieds|personal|matrikel|vertrags|fall|policen|konto)-?(?:nummer|nr\b\.?)|"
    r"aktenzeichen|(?:klant|patiënt|dossier|polis|lid|lidmaatschaps|personeels|zaak|rekening|student)-?nummer|"
    r"(?:kund|kunde|patient|pasient|journal|medlems|anställnings|ärende|sags|saks|konto)-?n(?:ummer|r)\b"
)
_ROMANCE = (
    r"n(?:um[ée]ro|úmero|umero|\.?[°ºo])\.? ?(?:d[eiou]s? |d['’]|della )?(?:dossier|client[e]?|patient|"
    r"adhérent|contrat|police|"
    r"compte|membre|étudiant|expediente|paciente|socio|póliza|cuenta|empleado|afiliado|pratica|paziente|tessera|polizza|"
    r"conto|utente|processo|prontuário|apólice|sócio|conta)|matricule|historia clínica|cartella clinica|matricola|"
    r"prontuário"
)
_SLAVIC = (
    r"n(?:ume)?r (?:klienta|pacjenta|polisy|sprawy|konta|pracownika|albumu)|"
    r"(?:rodné )?číslo (?:pojištěnce|klienta|pacienta|smlouvy)|rodné číslo|"
    r"номер (?:\w+ )?(?:карт\w+|полиса|договор\w+|дела|справи|сч[её]та|клиента|клієнта|пациента|пацієнта)|полис|"
    r"паспорт\w*|снилс|инн|іпн|рнокпп|посвідчення"
)
_OTHERS = (
    r"(?:tc|t\.c\.) kimlik|(?:hasta|müşteri|üye|dosya|poliçe|öğrenci|sicil) (?:no|numarası)|cccd|cmnd|hộ chiếu|"
    r"mã (?:khách hàng|bệnh nhân|nhân viên)|nik|ktp|nomor (?:pelanggan|pasien|rekening|anggota|induk)|rekam medis|"
    r"αφμ|αμκα|αδτ|αριθμ[όο]ς? (?:ταυτότητας|πελάτη|φακέλου|διαβατηρίου|μητρώου)|"
    r"رقم (?:الهوية|الملف|الجواز|جواز السفر|العضوية|العميل|المريض|الحساب|البطاقة)|"
    r"תעודת זהות|ת\.ז\.?|דרכון|מספר (?:לקוח|תיק|דרכון|חבר|מטופל)|"
    r"आधार|पैन|पासपोर्ट|(?:ग्राहक|रोगी|सदस्य|खाता|फ़ाइल) (?:संख्या|क्रमांक|नंबर)"
)
_WITHOUT_SPACES = (
    r"身份证|身分證|护照|護照|病历号|病歷號|病案号|住院号|门诊号|就诊卡号|学号|學號|工号|(?:员工|会员|客户|档案|合同|保单)(?:编号|卡号|号)|"
    r"(?:員工|會員|客戶|檔案|合約|保單)(?:編號|號碼?)|(?:社保|医保)卡?号|驾驶证号?|案号|账号|帐号|マイナンバー|個人番号|"
    r"(?:患者|診察券|会員|社員|学籍|顧客|お客様|契約|証券|口座|免許証?|保険証|被保険者|パスポート|旅券|在留カード|カルテ|受付)の?"
    r"(?:番号|ID)|(?:주민등록|주민|여권|면허|환자|등록|회원|고객|사원|계좌|보험|증권|차량) ?번호|학번|사번|"
    r"เลข(?:ที่|ประจำตัว|บัตร)[฀-๿]{0,20}"
)
_NUMBER = (
    r"(?P<number>(?-i:(?:[A-Z]{1,6}[-/ ]?){0,2}\d[\dA-Z]*"
    r"(?:[ ./-][A-Z]{0,3}\d[\dA-Z]*|[ ./-][A-Z]{1,3}(?=[ ./-]\d)|-[\dA-Z](?!\w)){0,6}))(?![A-Za-z0-9_-])"
)
_TOLD = re.compile(
    rf"(?i)(?P<cue>(?:\b(?:{_ENGLISH}|{_GERMANIC}|{_ROMANCE}|{_SLAVIC}|{_OTHERS})|{_WITHOUT_SPACES})"
    rf"(?! of )[^\d\n\[\]]{{0,16}}?)"
    rf"(?<![A-Za-z0-9.]){_NUMBER}"
)
_PLATE = re.compile(
    r"(?i)(?P<cue>(?:\b(?:licen[cs]e plate|number plate|plate number|registration number|kennzeichen|"
    r"plaque d['’]immatriculation|immatriculation|matrícula|targa|kenteken|госномер|plaka)|车牌号?|車牌號?码?)"
    r"(?: is| was| ist| est| es| lautet)?[\s:：是]{0,3})(?P<number>(?-i:[A-Z0-9京沪粤川][A-Z0-9·]*"
    r"(?:[ -][A-Z0-9]+){0,3}))(?!\w)"
)
_HAS_DIGITS = re.compile(r"\d\D{0,2}\d")
_MIN_LENGTH = 5


def without_record_numbers(text: str) -> str:
    """Return the text with `MARK` in place of numbers of patients, customers, members, cases, cards and cars."""
    if _HAS_DIGITS.search(text) is None:
        return text
    return _PLATE.sub(_plate, _TOLD.sub(partial(marked_number, least=_MIN_LENGTH), text))


def _plate(match: re.Match[str]) -> str:
    number = match["number"]
    is_one = any(c.isdigit() for c in number) and any(c.isalpha() for c in number) and len(number) >= _MIN_LENGTH
    return match["cue"] + MARK if is_one else match[0]
