//! Spans of time as people write them: `11m`, `1h30m`, `100ms`, `1.5s`, `0`.

use std::time::Duration;

const UNITS: [(&str, u128); 8] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    // the sign for micro, and the letter mu
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ns", 1),
];

/// Reads a span in the form of Go: numbers with units, one after the other.
pub(crate) fn parse_span(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_len);
        let unit_len = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        nanos = nanos.checked_add(scaled(number, scale)?)?;
        rest = after;
    }
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// A decimal number times a whole one, rounded down, without a detour over floats.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // nothing finer than a nanosecond counts, and 10^18 × an hour still fits
    const DIGITS: usize = 18;
    if (whole.is_empty() && fraction.is_empty()) || whole.len() > DIGITS || fraction.contains('.') {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(DIGITS)];
    let part = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse().ok() };
    let whole: u128 = part(whole)?;
    let fine: u128 = part(fraction)?;
    let tens = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(scale)?.checked_add(fine.checked_mul(scale)? / tens)
}

/// Writes a span so that [`parse_span`] reads it again: `11m`, `1h30m`, `1.5s`, `100ms`.
pub(crate) fn show_span(span: Duration) -> String {
    let nanos = span.subsec_nanos();
    let (hours, minutes, seconds) =
        (span.as_secs() / 3600, span.as_secs() / 60 % 60, span.as_secs() % 60);
    if span.is_zero() {
        return "0".to_owned();
    }
    if span < Duration::from_secs(1) {
        return match nanos {
            _ if nanos >= 1_000_000 => decimal(nanos / 1_000_000, nanos % 1_000_000, 6, "ms"),
            _ if nanos >= 1_000 => decimal(nanos / 1_000, nanos % 1_000, 3, "us"),
            _ => format!("{nanos}ns"),
        };
    }
    let mut text = String::new();
    for (number, unit) in [(hours, "h"), (minutes, "m")] {
        if number > 0 {
            text.push_str(&format!("{number}{unit}"));
        }
    }
    if seconds > 0 || nanos > 0 {
        text.push_str(&decimal(seconds, nanos, 9, "s"));
    }
    text
}

fn decimal(whole: impl std::fmt::Display, fine: u32, digits: usize, unit: &str) -> String {
    if fine == 0 {
        return format!("{whole}{unit}");
    }
    let fine = format!("{fine:0digits$}");
    format!("{whole}.{}{unit}", fine.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_go_reads_them() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("11m", 660_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("45s", 45_000_000_000),
            ("100ms", 100_000_000),
            ("15.5ms", 15_500_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1m0.25s", 60_250_000_000),
            ("7us", 7_000),
            ("7\u{b5}s", 7_000),
            ("1.0000000000000000000000001s", 1_000_000_000),
            ("3ns", 3),
        ] {
            assert_eq!(parse_span(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        for text in
            ["", "s", "5", "-5s", "1 h", "1h 30m", "5d", "1..5s", ".s", "5S", "1e3s", "s5", "1h30"]
        {
            assert_eq!(parse_span(text), None, "{text}");
        }
        assert_eq!(parse_span("99999999999h"), None, "more than can be counted");
        assert_eq!(parse_span(&format!("{}h", "9".repeat(500))), None, "far too long");
    }

    #[test]
    fn spans_are_written_so_that_they_can_be_read() {
        for text in [
            "0", "3ns", "1.5us", "100ms", "15.5ms", "1s", "1.5s", "45s", "11m", "1h30m", "1h0.25s",
            "26h",
        ] {
            let span = parse_span(text).expect("a span");
            assert_eq!(show_span(span), text);
        }
    }
}
