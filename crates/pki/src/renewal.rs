//! When a certificate must be replaced; pure, so that a clock that jumps can be a table row.

use std::time::Duration;

use jiff::Timestamp;

/// A day, the unit certificates live in.
pub const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long an authority lives.
pub const AUTHORITY_LIFETIME: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// How long an issued certificate lives.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// No certificate of ours was made before this program was (2026-01-01): a clock that says so is
/// wrong, and what it issues must still be good once it is set right.
const FLOOR: i64 = 1_767_225_600;

/// First and last moment of a certificate issued at `now`.
///
/// The first is 1970: a machine without a battery for its clock starts there, and a certificate
/// "not yet valid" would break a cluster for no gain, since we ourselves decide whom to trust.
pub fn validity(now: Timestamp, lifetime: Duration) -> (Timestamp, Timestamp) {
    let start = now.as_second().max(FLOOR);
    let lifetime = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
    let end = Timestamp::from_second(start.saturating_add(lifetime)).unwrap_or(Timestamp::MAX);
    (Timestamp::UNIX_EPOCH, end)
}

/// True when a certificate that ends at `not_after` should be replaced now: a third of its life or
/// less remains.
pub fn is_due(not_after: Timestamp, lifetime: Duration, now: Timestamp) -> bool {
    let third = i64::try_from(lifetime.as_secs() / 3).unwrap_or(i64::MAX);
    not_after.as_second().saturating_sub(now.as_second()) <= third
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn validity_survives_a_wrong_clock() {
        for (now, end) in [
            ("2026-08-01T12:00:00Z", "2027-08-01T12:00:00Z"),
            ("1970-01-01T00:00:07Z", "2027-01-01T00:00:00Z"),
            ("2199-08-01T00:00:00Z", "2200-08-01T00:00:00Z"),
        ] {
            assert_eq!(validity(at(now), LEAF_LIFETIME), (Timestamp::UNIX_EPOCH, at(end)), "{now}");
        }
    }

    #[test]
    fn renewal_is_due_in_the_last_third() {
        let end = at("2027-01-01T00:00:00Z");
        for (now, due) in [
            ("2026-01-01T00:00:00Z", false),
            ("2026-08-31T00:00:00Z", false),
            ("2026-09-02T00:00:00Z", true),
            ("2030-01-01T00:00:00Z", true),
            ("1970-01-01T00:00:00Z", false),
        ] {
            assert_eq!(is_due(end, LEAF_LIFETIME, at(now)), due, "{now}");
        }
    }
}
