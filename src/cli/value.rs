//! Sizes, durations and counts as typed (floor F7).
//!
//! Every parser takes the bytes of the value and answers either the number or
//! the half-sentence that completes `<option> '<value>' <reason>`.

use std::time::Duration;

/// The longest duration accepted: ten years, beyond any use and far below
/// what the kernel's 64-bit seconds hold.
const MAX_DURATION: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A duration: `500ms`, `1s`, `2m`, `1h`, `1d`, or plain seconds; decimals allowed.
pub fn duration(text: &[u8]) -> Result<Duration, &'static str> {
    const REASON: &str = "is not a duration; write for example 500ms, 1s, 2m or 0";
    let (number, unit) = split_unit(text);
    let nanos_per_unit: u64 = match unit {
        b"ms" => 1_000_000,
        b"" | b"s" => 1_000_000_000,
        b"m" => 60_000_000_000,
        b"h" => 3_600_000_000_000,
        b"d" => 86_400_000_000_000,
        _ => return Err(REASON),
    };
    let nanos = scaled(number, nanos_per_unit).ok_or(REASON)?;
    let nanos = u64::try_from(nanos).map_err(|_| "is too long; ten years is the most")?;
    let duration = Duration::from_nanos(nanos);
    if duration > MAX_DURATION {
        return Err("is too long; ten years is the most");
    }
    Ok(duration)
}

/// A size in bytes: plain, or with `K`, `M`, `G` or `T` (powers of 1,024);
/// `KiB` and `KB` mean the same as `K`.
pub fn size(text: &[u8]) -> Result<u64, &'static str> {
    const REASON: &str = "is not a size; write for example 64M, 2G or bytes";
    let (number, unit) = split_unit(text);
    let unit = unit.to_ascii_uppercase();
    let unit = unit
        .strip_suffix(b"IB")
        .or(unit.strip_suffix(b"B"))
        .unwrap_or(&unit);
    let shift = match unit {
        b"" => 0,
        b"K" => 10,
        b"M" => 20,
        b"G" => 30,
        b"T" => 40,
        _ => return Err(REASON),
    };
    let bytes = scaled(number, 1_u64 << shift).ok_or(REASON)?;
    u64::try_from(bytes)
        .ok()
        .filter(|b| *b <= i64::MAX as u64)
        .ok_or("is too large for memory")
}

/// A count between `least` and `most`.
pub fn count(text: &[u8], least: usize, most: usize) -> Option<usize> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: usize = std::str::from_utf8(text).ok()?.parse().ok()?;
    (least..=most).contains(&number).then_some(number)
}

/// Splits a value where its number ends.
fn split_unit(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|c| !c.is_ascii_digit() && *c != b'.')
        .unwrap_or(text.len());
    text.split_at(end)
}

/// `number` (digits, optionally with decimals) times `unit`, rounded down.
fn scaled(number: &[u8], unit: u64) -> Option<u128> {
    let text = std::str::from_utf8(number).ok()?;
    let (whole, decimals) = match text.split_once('.') {
        Some((whole, decimals)) if !decimals.is_empty() => (whole, decimals),
        Some(_) => return None,
        None => (text, ""),
    };
    // Nine decimals are nanoseconds; more than that is a slip, and the product stays in range.
    if whole.is_empty() || decimals.len() > 9 || decimals.contains('.') {
        return None;
    }
    let mut total = whole.parse::<u64>().ok()? as u128 * u128::from(unit);
    if !decimals.is_empty() {
        let power = 10_u128.pow(decimals.len() as u32);
        total += u128::from(decimals.parse::<u64>().ok()?) * u128::from(unit) / power;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let millis = |text: &str| duration(text.as_bytes()).ok().map(|d| d.as_nanos());
        for (text, nanos) in [
            ("0", Some(0)),
            ("1", Some(1_000_000_000)),
            ("1s", Some(1_000_000_000)),
            ("500ms", Some(500_000_000)),
            ("2m", Some(120_000_000_000)),
            ("1h", Some(3_600_000_000_000)),
            ("1d", Some(86_400_000_000_000)),
            ("0.5", Some(500_000_000)),
            ("1.5s", Some(1_500_000_000)),
            ("0.000000001s", Some(1)),
            ("3650d", Some(315_360_000_000_000_000)),
            ("3651d", None),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("+1s", None),
            ("1 s", None),
            ("1s ", None),
            ("1S", None),
            ("1min", None),
            ("1..5", None),
            (".5", None),
            ("1.", None),
            ("1e3", None),
            ("0.0000000001", None),
            ("18446744073709551615", None),
            ("18446744073709551616", None),
            ("inf", None),
        ] {
            assert_eq!(millis(text), nanos, "{text:?}");
        }
        assert!(duration(b"\xff").is_err());
        assert!(duration(b"99999999d").unwrap_err().contains("too long"));
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("1", Some(1)),
            ("4096", Some(4096)),
            ("1K", Some(1 << 10)),
            ("1k", Some(1 << 10)),
            ("512M", Some(512 << 20)),
            ("512m", Some(512 << 20)),
            ("2G", Some(2 << 30)),
            ("1T", Some(1 << 40)),
            ("1KiB", Some(1 << 10)),
            ("1MB", Some(1 << 20)),
            ("10B", Some(10)),
            ("1.5G", Some(3 << 29)),
            ("0.5", Some(0)),
            ("9223372036854775807", Some(i64::MAX as u64)),
            ("9223372036854775808", None),
            ("8388608T", None),
            ("", None),
            ("M", None),
            ("-1", None),
            ("1 M", None),
            ("1X", None),
            ("1P", None),
            ("1iB", Some(1)),
            ("0x10", None),
            ("1_000", None),
        ] {
            assert_eq!(size(text.as_bytes()).ok(), bytes, "{text:?}");
        }
    }

    #[test]
    fn counts() {
        for (text, number) in [
            ("1", Some(1)),
            ("256", Some(256)),
            ("257", None),
            ("0", None),
            ("", None),
            ("+2", None),
            ("2.0", None),
            ("two", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(count(text.as_bytes(), 1, 256), number, "{text:?}");
        }
    }
}
