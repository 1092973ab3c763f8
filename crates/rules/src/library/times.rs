//! Parts of moments and durations.

use super::Imp;
use crate::meter::{Error, Meter};
use crate::time::Calendar;
use crate::value::{Out, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("timestamp_to_year: <timestamp>.getFullYear() -> int", year),
    ("timestamp_to_year_with_tz: <timestamp>.getFullYear(string) -> int", year),
    ("timestamp_to_month: <timestamp>.getMonth() -> int", month),
    ("timestamp_to_month_with_tz: <timestamp>.getMonth(string) -> int", month),
    ("timestamp_to_day_of_year: <timestamp>.getDayOfYear() -> int", day_of_year),
    ("timestamp_to_day_of_year_with_tz: <timestamp>.getDayOfYear(string) -> int", day_of_year),
    ("timestamp_to_day_of_month: <timestamp>.getDayOfMonth() -> int", day_of_month),
    ("timestamp_to_day_of_month_with_tz: <timestamp>.getDayOfMonth(string) -> int", day_of_month),
    ("timestamp_to_day_of_month_1_based: <timestamp>.getDate() -> int", date),
    ("timestamp_to_day_of_month_1_based_with_tz: <timestamp>.getDate(string) -> int", date),
    ("timestamp_to_day_of_week: <timestamp>.getDayOfWeek() -> int", day_of_week),
    ("timestamp_to_day_of_week_with_tz: <timestamp>.getDayOfWeek(string) -> int", day_of_week),
    ("timestamp_to_hours: <timestamp>.getHours() -> int", hours),
    ("timestamp_to_hours_with_tz: <timestamp>.getHours(string) -> int", hours),
    ("duration_to_hours: <duration>.getHours() -> int", hours),
    ("timestamp_to_minutes: <timestamp>.getMinutes() -> int", minutes),
    ("timestamp_to_minutes_with_tz: <timestamp>.getMinutes(string) -> int", minutes),
    ("duration_to_minutes: <duration>.getMinutes() -> int", minutes),
    ("timestamp_to_seconds: <timestamp>.getSeconds() -> int", seconds),
    ("timestamp_to_seconds_tz: <timestamp>.getSeconds(string) -> int", seconds),
    ("duration_to_seconds: <duration>.getSeconds() -> int", seconds),
    ("timestamp_to_milliseconds: <timestamp>.getMilliseconds() -> int", milliseconds),
    ("timestamp_to_milliseconds_with_tz: <timestamp>.getMilliseconds(string) -> int", milliseconds),
    ("duration_to_milliseconds: <duration>.getMilliseconds() -> int", milliseconds),
];

/// What the calendar says, in UTC or in the zone of the argument.
fn part<'a>(meter: &mut Meter, args: &[Val<'a>], of: fn(&Calendar) -> i64) -> Out<'a> {
    let (time, east) = match args {
        [Val::Timestamp(time)] => (time, 0),
        [Val::Timestamp(time), Val::String(zone)] => {
            // Reading a zone's rules takes a while.
            meter.step(500)?;
            (time, time.east(zone)?)
        }
        _ => return Err(Error::no_such_overload()),
    };
    Ok(Val::Int(of(&time.calendar(east))))
}

fn year<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    part(meter, args, |c| c.year)
}

fn month<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    part(meter, args, |c| c.month - 1)
}

fn day_of_year<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    part(meter, args, |c| c.day_of_year)
}

fn day_of_month<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    part(meter, args, |c| c.day - 1)
}

fn date<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    part(meter, args, |c| c.day)
}

fn day_of_week<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    part(meter, args, |c| c.weekday)
}

fn hours<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Duration(d)] => Ok(Val::Int(d / 3_600_000_000_000)),
        _ => part(meter, args, |c| c.hour),
    }
}

fn minutes<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Duration(d)] => Ok(Val::Int(d / 60_000_000_000)),
        _ => part(meter, args, |c| c.minute),
    }
}

fn seconds<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Duration(d)] => Ok(Val::Int(d / 1_000_000_000)),
        _ => part(meter, args, |c| c.second),
    }
}

fn milliseconds<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Duration(d)] => Ok(Val::Int(d / 1_000_000)),
        [Val::Timestamp(time)] => Ok(Val::Int(i64::from(time.nanos / 1_000_000))),
        [Val::Timestamp(time), Val::String(zone)] => {
            meter.step(500)?;
            time.east(zone)?;
            Ok(Val::Int(i64::from(time.nanos / 1_000_000)))
        }
        _ => Err(Error::no_such_overload()),
    }
}
