//! From when to when a certificate is valid.

use std::time::{Duration, SystemTime};

/// The time in which a certificate is valid, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateValidity {
    /// Its beginning.
    pub not_before: SystemTime,
    /// Its end.
    pub not_after: SystemTime,
}

/// The tags of DER that stand before the validity (RFC 5280, §4.1).
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

impl CertificateValidity {
    /// Reads that of a certificate in DER. `None` if it cannot be found.
    pub(super) fn read(certificate: &[u8]) -> Option<Self> {
        let (content, _) = of_tag(SEQUENCE, certificate)?;
        let (mut fields, _) = of_tag(SEQUENCE, content)?;
        if fields.first() == Some(&VERSION) {
            (_, _, fields) = element(fields)?;
        }
        // Serial number, signature algorithm, issuer.
        for _ in 0..3 {
            (_, _, fields) = element(fields)?;
        }
        let (times, _) = of_tag(SEQUENCE, fields)?;
        let (tag, begin, times) = element(times)?;
        let not_before = time(tag, begin)?;
        let (tag, end, _) = element(times)?;
        Some(Self { not_before, not_after: time(tag, end)? })
    }
}

/// Returns the content of an element with this tag, and what follows it.
fn of_tag(wanted: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = element(bytes)?;
    (tag == wanted).then_some((content, rest))
}

/// Returns the tag and the content of the first element, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&first, bytes) = bytes.split_first()?;
    let (length, bytes) = match first {
        0..=0x7f => (usize::from(first), bytes),
        0x81..=0x84 => {
            let (digits, bytes) = bytes.split_at_checked(usize::from(first - 0x80))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), bytes)
        }
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Reads `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`. Times before 1970 count as its first.
fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let digits = text.strip_suffix(b"Z")?;
    let number = |at: usize| -> Option<u64> {
        let two = std::str::from_utf8(digits.get(at..at + 2)?).ok()?;
        two.bytes().all(|digit| digit.is_ascii_digit()).then(|| two.parse().ok())?
    };
    let (year, at) = match (tag, digits.len()) {
        // RFC 5280, §4.1.2.5.1.
        (UTC_TIME, 12) => (number(0).map(|year| year + if year < 50 { 2000 } else { 1900 })?, 2),
        (GENERALIZED_TIME, 14) => (number(0)? * 100 + number(2)?, 4),
        _ => return None,
    };
    let (month, day) = (number(at)?, number(at + 2)?);
    let (hour, minute, second) = (number(at + 4)?, number(at + 6)?, number(at + 8)?);
    if !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let seconds = days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Returns the number of days since 1970-01-01, 0 before.
///
/// # Source
/// Howard Hinnant, "chrono-compatible low-level date algorithms", `days_from_civil`: years begin in March.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    Some((era * 146_097 + of_era).saturating_sub(719_468))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn seconds(at: SystemTime) -> u64 {
        at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Goal: times are those of the certificate, in both forms, and no bytes make it panic. Method: certificates by rcgen, whose seconds `date -u -d` shows; each of them cut at
    /// each byte, and with each byte changed.
    #[test]
    fn times_are_read() {
        for ((begin, end), expected) in [
            (((2020, 2, 29), (2049, 12, 31)), (1_582_934_400, 2_524_521_600)),
            (((1970, 1, 1), (2099, 3, 1)), (0, 4_076_006_400)),
        ] {
            let mut params = CertificateParams::new(vec!["web.test".to_owned()]).expect("a name");
            params.not_before = date_time_ymd(begin.0, begin.1, begin.2);
            params.not_after = date_time_ymd(end.0, end.1, end.2);
            let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
            let der = params.self_signed(&key).expect("a key that signs").der().to_vec();
            let found = CertificateValidity::read(&der).expect("it is whole");
            assert_eq!((seconds(found.not_before), seconds(found.not_after)), expected);
            for at in 0..der.len() {
                let _ = CertificateValidity::read(&der[..at]);
                for change in [0x01, 0x80, 0xff] {
                    let mut damaged = der.clone();
                    damaged[at] ^= change;
                    let _ = CertificateValidity::read(&damaged);
                }
            }
        }
        assert_eq!(time(UTC_TIME, b"491231235959Z").map(seconds), Some(2_524_607_999));
        assert_eq!(time(UTC_TIME, b"500101000000Z").map(seconds), Some(0));
        assert_eq!(time(GENERALIZED_TIME, b"99991231235959Z").map(seconds), Some(253_402_300_799));
        for wrong in ["", "Z", "2001010000Z", "20-101000000Z", "201301000000Z", "200100000000Z"] {
            assert_eq!(time(UTC_TIME, wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(time(GENERALIZED_TIME, b"00000101000000Z"), None);
    }
}
