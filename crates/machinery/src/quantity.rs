//! Amounts of resources: exact decimal numbers with a suffix, printed in one canonical form.
//!
//! ```text
//! "1.5Gi" ─parse─► 1610612736 × 10⁹ nano, binary ─print─► "1536Mi"
//! "1000m" ─parse─► 10⁹ nano, decimal             ─print─► "1"
//! ```
//!
//! The smallest step is one nano; what is finer is rounded up (away from zero), so that whoever
//! wants something gets something. Numbers beyond what fits are capped. An object keeps many amounts as
//! they were written: see [`canonical`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Nanos in one.
const ONE: i128 = 1_000_000_000;
/// The cap of binary amounts, and of decimal ones that do not fit.
const MAX: i128 = i64::MAX as i128 * ONE;

/// Which family of suffixes an amount prints with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `Ki`, `Mi`, …
    Binary,
    /// `m`, `k`, `M`, …
    #[default]
    Decimal,
    /// `e3`, `e-3`, …
    Exponent,
}

/// An amount. Equality and order look at the value alone, not at the format.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

/// Why a text is no quantity; the texts are what clients see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { nano: 0, format: Format::Decimal };

    /// An amount of whole units.
    pub fn from_value(value: i64, format: Format) -> Self {
        Self { nano: i128::from(value) * ONE, format }
    }

    /// An amount of thousandths.
    pub fn from_milli(milli: i64, format: Format) -> Self {
        Self { nano: i128::from(milli) * 1_000_000, format }
    }

    /// Whole units, rounded up.
    pub fn value(&self) -> i128 {
        ceil(self.nano, ONE)
    }

    /// Thousandths, rounded up.
    pub fn milli(&self) -> i128 {
        ceil(self.nano, 1_000_000)
    }

    /// The amount as a double, which may lose digits.
    pub fn approximate(&self) -> f64 {
        self.nano as f64 / ONE as f64
    }

    /// The family of suffixes it prints with.
    pub fn format(&self) -> Format {
        self.format
    }

    /// True for zero.
    pub fn is_zero(&self) -> bool {
        self.nano == 0
    }

    /// True below zero.
    pub fn is_negative(&self) -> bool {
        self.nano < 0
    }

    /// The amount rounded up to thousandths: what resource lists are stored as.
    #[must_use]
    pub fn rounded_to_milli(&self) -> Self {
        let step = 1_000_000;
        // Away from zero, as parsing does: a request for a little is never a request for nothing.
        let up = ceil(self.nano.abs(), step) * step;
        Self { nano: up * self.nano.signum(), format: self.format }
    }

    /// The sum. Zero takes on the other's format.
    #[must_use]
    pub fn add(&self, other: &Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nano: self.nano.saturating_add(other.nano), format }
    }

    /// The difference. Zero takes on the other's format.
    #[must_use]
    pub fn sub(&self, other: &Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nano: self.nano.saturating_sub(other.nano), format }
    }
}

fn ceil(n: i128, by: i128) -> i128 {
    let (quotient, rest) = (n / by, n % by);
    if rest > 0 { quotient + 1 } else { quotient }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What a suffix multiplies by: a power of ten, or of two.
fn suffix(text: &str) -> Option<(Format, i32)> {
    Some(match text {
        "n" => (Format::Decimal, -9),
        "u" => (Format::Decimal, -6),
        "m" => (Format::Decimal, -3),
        "" => (Format::Decimal, 0),
        "k" => (Format::Decimal, 3),
        "M" => (Format::Decimal, 6),
        "G" => (Format::Decimal, 9),
        "T" => (Format::Decimal, 12),
        "P" => (Format::Decimal, 15),
        "E" => (Format::Decimal, 18),
        "Ki" => (Format::Binary, 10),
        "Mi" => (Format::Binary, 20),
        "Gi" => (Format::Binary, 30),
        "Ti" => (Format::Binary, 40),
        "Pi" => (Format::Binary, 50),
        "Ei" => (Format::Binary, 60),
        _ => {
            let exponent = text.strip_prefix(['e', 'E'])?;
            (Format::Exponent, exponent.parse().ok()?)
        }
    })
}

/// The parts of a text that has a quantity's form.
struct Parts<'t> {
    negative: bool,
    /// Without leading zeros; `0` when nothing is left.
    whole: &'t str,
    fraction: &'t str,
    format: Format,
    /// Of ten, or of two.
    exponent: i32,
}

impl<'t> Parts<'t> {
    fn of(text: &'t str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError::Format);
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, mut unit) = rest.split_at(digits(rest));
        let mut fraction = "";
        if let Some(rest) = unit.strip_prefix('.') {
            (fraction, unit) = rest.split_at(digits(rest));
        }
        let letters = unit.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
        let power = letters.strip_prefix(['-', '+']).unwrap_or(letters);
        if !power.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ParseError::Format);
        }
        let (format, exponent) = suffix(unit).ok_or(ParseError::Suffix)?;
        let whole = match number.trim_start_matches('0') {
            "" => "0",
            whole => whole,
        };
        let parts = Self { negative, whole, fraction, format, exponent };
        // A suffix alone is nothing, but not where big numbers are needed to say so.
        if number.is_empty() && fraction.is_empty() && !parts.is_small() {
            return Err(ParseError::Numeric);
        }
        Ok(parts)
    }

    /// The power of ten of the last digit.
    fn scale(&self) -> i64 {
        let fraction = i64::try_from(self.fraction.len()).unwrap_or(i64::MAX);
        if self.format == Format::Binary { 0 } else { i64::from(self.exponent).saturating_sub(fraction) }
    }

    /// True for what fits into 64 bits by a glance at its length.
    fn is_small(&self) -> bool {
        match self.format {
            Format::Binary if !self.fraction.is_empty() => false,
            Format::Binary => self.whole.len() as i64 + i64::from(self.exponent) * 3 / 10 < 15,
            Format::Decimal | Format::Exponent => self.whole.len() + self.fraction.len() <= 18 && self.scale() >= -9,
        }
    }

    /// True when the text is kept as it was written. It need not be the shortest form.
    fn is_kept(&self) -> bool {
        if !self.is_small() {
            return false;
        }
        if self.format == Format::Binary {
            return self.whole.parse::<u64>().is_ok_and(|value| value % 8 != 0);
        }
        let zeros = |text: &str| text.bytes().rev().take_while(|b| *b == b'0').count();
        let mut trailing = zeros(self.fraction);
        if trailing == self.fraction.len() {
            trailing += zeros(self.whole);
        }
        self.scale() % 3 == 0 && trailing < 3 && !self.whole.starts_with('0')
    }

    /// The canonical form of a decimal amount, however large.
    fn decimal_text(&self) -> String {
        let mut digits: Vec<u8> = self.whole.bytes().chain(self.fraction.bytes()).skip_while(|b| *b == b'0').collect();
        let mut scale = self.scale();
        let fine = usize::try_from(-9 - scale).unwrap_or(0);
        if fine > 0 && !digits.is_empty() {
            // What is finer than a nano is rounded away from zero.
            let cut = digits.split_off(digits.len().saturating_sub(fine));
            scale = -9;
            if digits.is_empty() {
                digits.push(b'0');
            }
            if cut.iter().any(|b| *b != b'0') {
                let nines = digits.iter().rev().take_while(|b| **b == b'9').count();
                let kept = digits.len() - nines;
                digits[kept..].fill(b'0');
                match kept.checked_sub(1) {
                    Some(last) => digits[last] += 1,
                    None => digits.insert(0, b'1'),
                }
            }
        }
        while digits.last() == Some(&b'0') {
            digits.pop();
            scale += 1;
        }
        if digits.is_empty() {
            return "0".to_owned();
        }
        let last = if self.format == Format::Exponent { i64::MAX } else { 18 };
        while scale % 3 != 0 || scale > last {
            digits.push(b'0');
            scale -= 1;
        }
        let sign = if self.negative { "-" } else { "" };
        let number = String::from_utf8(digits).unwrap_or_default();
        match (self.format, scale) {
            (Format::Exponent, 0) => format!("{sign}{number}"),
            (Format::Exponent, _) => format!("{sign}{number}e{scale}"),
            _ => format!("{sign}{number}{}", decimal_suffix(scale)),
        }
    }
}

fn decimal_suffix(scale: i64) -> &'static str {
    const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    usize::try_from((scale + 9) / 3).ok().and_then(|i| SUFFIXES.get(i)).copied().unwrap_or_default()
}

/// The form in which an object carries the amount: as it was written when upstream keeps that, else
/// canonical.
///
/// # Errors
/// When the text is no quantity.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, ParseError> {
    let parts = Parts::of(text)?;
    if text == "0" || parts.is_kept() {
        return Ok(Cow::Borrowed(text));
    }
    Ok(Cow::Owned(match parts.format {
        Format::Binary => text.parse::<Quantity>()?.to_string(),
        Format::Decimal | Format::Exponent => parts.decimal_text(),
    }))
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let Parts { negative, whole, fraction, mut format, exponent } = Parts::of(text)?;
        let mut nano = match format {
            Format::Binary => binary(whole, fraction, exponent),
            Format::Decimal | Format::Exponent => decimal(whole, fraction, i64::from(exponent)),
        };
        if format == Format::Binary {
            nano = nano.min(MAX);
            // Less than one has no binary suffix.
            if nano > 0 && nano < ONE {
                format = Format::Decimal;
            }
        }
        Ok(Self { nano: if negative { -nano } else { nano }, format })
    }
}

/// `whole.fraction × 10^exponent` in nanos, rounded up, capped.
fn decimal(whole: &str, fraction: &str, exponent: i64) -> i128 {
    let mut nano: i128 = 0;
    let mut rounded = false;
    // Position of each digit: the last of `whole` has weight 10^exponent.
    let top = exponent + whole.len() as i64 - 1 + 9;
    for (i, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let digit = i128::from(digit - b'0');
        let power = top - i as i64;
        if digit == 0 {
            continue;
        }
        if power < 0 {
            rounded = true;
            continue;
        }
        let part = u32::try_from(power).ok().and_then(|p| 10i128.checked_pow(p)).and_then(|p| p.checked_mul(digit));
        match part.and_then(|part| nano.checked_add(part)) {
            Some(sum) => nano = sum,
            None => return MAX,
        }
    }
    if rounded { nano.saturating_add(1) } else { nano }
}

/// `whole.fraction × 2^exponent` in nanos, rounded up, capped.
fn binary(whole: &str, fraction: &str, exponent: i32) -> i128 {
    let factor = 1i128 << exponent;
    let whole = whole.bytes().try_fold(0i128, |n, b| n.checked_mul(10)?.checked_add(i128::from(b - b'0')));
    let Some(whole) = whole.and_then(|n| n.checked_mul(factor)).and_then(|n| n.checked_mul(ONE)) else {
        return MAX;
    };
    // The fraction digit by digit, as remainders of a long division: 30 digits are finer than a nano of 1Ei.
    let mut part: i128 = 0;
    let mut lost = false;
    let mut scale: i128 = 1;
    for (i, digit) in fraction.bytes().enumerate() {
        if i < 18 {
            part = part * 10 + i128::from(digit - b'0');
            scale *= 10;
        } else if digit != b'0' {
            lost = true;
        }
    }
    // part / scale × factor × ONE, exactly: part < 10^18 and factor × ONE < 2^90 overflow together, so by halves.
    let (high, low) = (part / ONE, part % ONE);
    let unit = factor * ONE;
    let scale_high = (scale / ONE).max(1);
    let nano = if scale <= ONE {
        mul_div_ceil(part, unit, scale)
    } else {
        // part/scale = high/scale_high + low/scale
        mul_div_ceil(high * ONE + low, unit / ONE, scale_high)
    };
    whole.saturating_add(nano).saturating_add(i128::from(lost))
}

/// `a × b / c` rounded up; falls back to dividing first where the product would not fit.
fn mul_div_ceil(a: i128, b: i128, c: i128) -> i128 {
    match a.checked_mul(b) {
        Some(product) => ceil(product, c),
        None => (b / c).saturating_mul(a).saturating_add(ceil((b % c).saturating_mul(a), c)),
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        let small = self.nano.abs() < 1024 * ONE;
        if self.format == Format::Binary && !small && self.nano % ONE == 0 {
            const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
            let (mut number, mut power) = (self.nano / ONE, 0);
            while number % 1024 == 0 && power < SUFFIXES.len() - 1 {
                number /= 1024;
                power += 1;
            }
            return write!(f, "{number}{}", SUFFIXES[power]);
        }
        let (mut number, mut power) = (self.nano, -9);
        let last = if self.format == Format::Exponent { i32::MAX } else { 18 };
        while number % 1000 == 0 && power < last {
            number /= 1000;
            power += 3;
        }
        if self.format == Format::Exponent {
            return if power == 0 { write!(f, "{number}") } else { write!(f, "{number}e{power}") };
        }
        write!(f, "{number}{}", decimal_suffix(i64::from(power)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(text: &str) -> String {
        text.parse::<Quantity>().map_or_else(|e| e.to_string(), |q| q.to_string())
    }

    #[test]
    fn canonical_forms() {
        for (text, want) in [
            ("0", "0"),
            ("0Ki", "0"),
            ("-0", "0"),
            ("1", "1"),
            ("1000m", "1"),
            ("1.5", "1500m"),
            ("100m", "100m"),
            ("0.1m", "100u"),
            ("0.1n", "1n"),
            ("-0.1n", "-1n"),
            ("1.5Gi", "1536Mi"),
            ("1024Ki", "1Mi"),
            ("1025Ki", "1025Ki"),
            ("0.5Ki", "512"),
            ("1Ki", "1Ki"),
            ("1000Ki", "1000Ki"),
            ("1000k", "1M"),
            ("1024", "1024"),
            ("12345678", "12345678"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e-1", "1200e-3"),
            ("1e0", "1"),
            ("1E", "1E"),
            ("1000E", "1000E"),
            ("+2", "2"),
            (".5", "500m"),
            ("5.", "5"),
            ("0.0001Ki", "102400u"),
            ("1.1Ki", "1126400m"),
            ("64", "64"),
            ("8Ei", "9223372036854775807"),
            ("100Ei", "9223372036854775807"),
            ("1e100", "9223372036854775807"),
            ("", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
            ("x", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
            ("1 ", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
            ("1.2.3", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
            (".", "0"),
            ("Ki", "0"),
            ("Ei", "unable to parse numeric part of quantity"),
            ("1ki", "unable to parse quantity's suffix"),
            ("1MM", "unable to parse quantity's suffix"),
            ("1e", "unable to parse quantity's suffix"),
            ("1e99999999999", "unable to parse quantity's suffix"),
        ] {
            assert_eq!(canonical(text), want, "{text:?}");
        }
    }

    /// What is kept and what is rewritten, as upstream does it.
    #[test]
    fn objects_keep_most_amounts_as_they_were_written() {
        for kept in
            ["0", "1", "100m", "1E3", "+5", "-5", "0005", "1.500", "5.", "5.Ki", "1100Ki", "1e18", "1e+3", "1.234"]
        {
            assert_eq!(super::canonical(kept).as_deref(), Ok(kept));
        }
        for (text, want) in [
            ("+", "0"),
            ("-0", "0"),
            ("00", "0"),
            ("0Ki", "0"),
            ("m", "0"),
            ("1.5", "1500m"),
            ("0.5", "500m"),
            ("1.0", "1"),
            ("1000", "1k"),
            ("1000000", "1M"),
            ("12e-1", "1200e-3"),
            ("100e2", "10e3"),
            ("1e19", "10e18"),
            ("1e100", "10e99"),
            ("1e-10", "1e-9"),
            ("1.0000000001", "1000000001n"),
            ("0.9999999999", "1"),
            ("-0.1n", "-1n"),
            ("1024Ki", "1Mi"),
            ("0.0001Ki", "102400u"),
            ("9223372036854775808", "9223372036854775808"),
            ("100000000000000000000000m", "100E"),
            ("12345678901234567.8", "12345678901234567800m"),
            ("3.000000000000001Gi", "3221225472000001074n"),
            ("-8Ei", "-9223372036854775807"),
        ] {
            assert_eq!(super::canonical(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn whole_and_milli_round_up() {
        let q = |t: &str| t.parse::<Quantity>().expect("a quantity");
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("-1500m").value(), -1);
        assert_eq!(q("1u").milli(), 1);
        assert_eq!(q("2").milli(), 2000);
        assert_eq!(q("1500u").rounded_to_milli().to_string(), "2m");
        assert_eq!(q("100Mi").add(&q("100M")).to_string(), "204857600");
        assert_eq!(Quantity::ZERO.add(&q("1Gi")).to_string(), "1Gi");
        assert_eq!(q("1").sub(&q("100m")).to_string(), "900m");
        assert!(q("1Gi") > q("1G"));
        assert_eq!(q("1024Mi"), q("1Gi"));
    }

    proptest! {
        #[test]
        fn printing_loses_nothing_and_is_stable(text in "[-+]?[0-9]{1,12}(\\.[0-9]{1,10})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[0-9]|e-[0-9])?") {
            let once: Quantity = text.parse().expect("grammar");
            let printed = once.to_string();
            let twice: Quantity = printed.parse().expect("canonical form");
            prop_assert_eq!(once, twice);
            prop_assert_eq!(twice.to_string(), printed);
        }

        #[test]
        fn any_text_is_answered(text in "[-+.0-9eEinumkKMGTP]{0,12}|\\PC{0,24}") {
            let read = text.parse::<Quantity>();
            match super::canonical(&text) {
                Ok(canonical) => {
                    prop_assert_eq!(read, canonical.parse::<Quantity>());
                    let again = super::canonical(&canonical).map(Cow::into_owned);
                    prop_assert_eq!(again, Ok(canonical.clone().into_owned()));
                }
                Err(error) => prop_assert_eq!(read, Err(error)),
            }
        }

        #[test]
        fn order_is_that_of_the_numbers(a in -1_000_000i64..1_000_000, b in -1_000_000i64..1_000_000) {
            let (x, y) = (Quantity::from_milli(a, Format::Decimal), Quantity::from_milli(b, Format::Binary));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(x.add(&y).sub(&y), x);
        }

        #[test]
        fn fractions_of_binary_amounts_are_exact(whole in 0u32..1000, milli in 0u32..1000) {
            let q: Quantity = format!("{whole}.{milli:03}Ki").parse().expect("grammar");
            prop_assert_eq!(q.milli(), i128::from(whole * 1000 + milli) * 1024);
        }
    }
}
