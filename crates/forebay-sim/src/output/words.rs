//! How figures are written, the same everywhere and on every machine.

/// A number with its thousands apart: `12,345`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 service`, `2 services`.
pub(crate) fn counted(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Seconds as people write them: `12 µs`, `3.4 ms`, `10.25 s`, `5 min 3.1 s`.
pub fn span(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "never".to_owned();
    }
    let micros = (seconds.max(0.0) * 1e6).round() as u64;
    match micros {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{micros} µs"),
        1_000..999_950 => format!("{} ms", decimal(micros.div_round(100), 1)),
        999_950..59_995_000 => format!("{} s", decimal(micros.div_round(10_000), 2)),
        _ => long(micros.div_round(100_000), 1),
    }
}

/// An instant of a run, to the millisecond: `310.25 s` is `5 min 10.25 s`.
pub(crate) fn instant(seconds: f64) -> String {
    let millis = (seconds.max(0.0) * 1e3).round() as u64;
    if millis < 60_000 { format!("{} s", decimal(millis, 3)) } else { long(millis, 3) }
}

/// Hours, minutes and seconds of a time in units of 10^-places s.
fn long(units: u64, places: u32) -> String {
    let second = 10_u64.pow(places);
    let (minutes, rest) = (units / (60 * second), units % (60 * second));
    let parts = [
        (minutes / 60, format!("{} h", count(minutes / 60))),
        (minutes % 60, format!("{} min", minutes % 60)),
        (rest, format!("{} s", decimal(rest, places))),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(n, _)| *n > 0).map(|(_, text)| text).collect();
    parts.join(" ")
}

/// `units` × 10^-places without needless zeros.
fn decimal(units: u64, places: u32) -> String {
    let one = 10_u64.pow(places);
    let text = format!("{}.{:0>2$}", count(units / one), units % one, places as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A share of one as a percentage: `2.1 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", decimal((share.abs() * 1000.0).round() as u64, 1))
}

/// A number for a plot or its axis: at most three decimals, no needless zeros.
pub(crate) fn plain(n: f64) -> String {
    let text = format!("{n:.3}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// A number at an axis: `25`, `2,500`, `250k`, `1.5M`.
pub(crate) fn axis(n: f64) -> String {
    if n >= 1e6 {
        format!("{}M", plain(n / 1e6))
    } else if n >= 1e5 {
        format!("{}k", plain(n / 1e3))
    } else if n.fract() == 0.0 {
        count(n as u64)
    } else {
        plain(n)
    }
}

/// For HTML, XML and attributes. What XML cannot hold is replaced.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => safe.push(char::REPLACEMENT_CHARACTER),
            c if c.is_control() => safe.push(char::REPLACEMENT_CHARACTER),
            c => safe.push(c),
        }
    }
    safe
}

trait DivRound {
    fn div_round(self, by: Self) -> Self;
}

impl DivRound for u64 {
    fn div_round(self, by: Self) -> Self {
        (self + by / 2) / by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_their_thousands_apart() {
        let numbers = [0, 12, 123, 1234, 123_456, 1_234_567].map(count);
        assert_eq!(numbers, ["0", "12", "123", "1,234", "123,456", "1,234,567"]);
        assert_eq!([1, 2].map(|n| counted(n, "service")), ["1 service", "2 services"]);
    }

    #[test]
    fn spans_read_well_at_every_size_and_round_up_into_the_next_unit() {
        let spans = [0.0, 2e-6, 0.0015, 0.25, 0.99999, 1.0, 9.876, 59.999, 61.0, 1200.0, 3723.45];
        assert_eq!(
            spans.map(span),
            [
                "0 s",
                "2 µs",
                "1.5 ms",
                "250 ms",
                "1 s",
                "1 s",
                "9.88 s",
                "1 min",
                "1 min 1 s",
                "20 min",
                "1 h 2 min 3.5 s"
            ]
        );
    }

    #[test]
    fn instants_keep_their_milliseconds() {
        let instants = [0.0, 0.1234, 59.9999, 310.25, 7200.001].map(instant);
        assert_eq!(instants, ["0 s", "0.123 s", "1 min", "5 min 10.25 s", "2 h 0.001 s"]);
    }

    #[test]
    fn numbers_of_plots_are_short() {
        assert_eq!([0.0, -0.0001, 1.5, 2.0, -3.1234].map(plain), ["0", "0", "1.5", "2", "-3.123"]);
        let axes = [0.0, 0.5, 2500.0, 250_000.0, 1_500_000.0].map(axis);
        assert_eq!(axes, ["0", "0.5", "2,500", "250k", "1.5M"]);
    }

    #[test]
    fn text_cannot_break_out_of_markup() {
        assert_eq!(
            escaped("<a href=\"x\">'&\u{1b}"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\u{fffd}"
        );
    }
}
