//! Whether an image is fetched, used as it is, or waited for. Pure.

use std::time::Duration;

use api::types::core::v1::Container;
use machinery::time;

/// `imagePullPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Always,
    IfNotPresent,
    Never,
}

/// What to do about an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is here and serves.
    Use,
    /// Fetch it now.
    Pull,
    /// It may not be fetched and is not here.
    Never,
    /// The last try failed not long ago.
    Wait(Duration),
}

impl Policy {
    /// The container's policy; the API server has filled it in, the rules here are its own.
    pub fn of(container: &Container) -> Self {
        Self::named(container.image_pull_policy.as_deref(), container.image.as_deref().unwrap_or_default())
    }

    /// The policy of that name for an image; unset it follows from the image's tag.
    pub fn named(policy: Option<&str>, image: &str) -> Self {
        match policy {
            Some("Always") => Self::Always,
            Some("IfNotPresent") => Self::IfNotPresent,
            Some("Never") => Self::Never,
            _ => match super::reference::parse(image) {
                Ok(r) if r.digest.is_none() && r.tag.as_deref().is_none_or(|t| t == "latest") => Self::Always,
                _ => Self::IfNotPresent,
            },
        }
    }

    /// Decides. `remaining` is what the back-off after failed tries still asks for.
    pub fn choose(self, present: bool, remaining: Duration) -> Step {
        match (self, present) {
            (Self::IfNotPresent | Self::Never, true) => Step::Use,
            (Self::Never, false) => Step::Never,
            _ if remaining > Duration::ZERO => Step::Wait(remaining),
            _ => Step::Pull,
        }
    }
}

/// The message of a container that waits for an image whose last try failed.
pub fn back_off_message(image: &str, last_error: &str) -> String {
    format!("Back-off pulling image \"{image}\": ErrImagePull: {last_error}")
}

/// A duration as Go prints it, to the millisecond: `1.203s`, `640ms`, `2m3.5s`.
pub fn go_duration(duration: Duration) -> String {
    let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    time::go_duration(millis.saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices() {
        let (none, some) = (Duration::ZERO, Duration::from_secs(3));
        for (policy, present, remaining, want) in [
            (Policy::Always, true, none, Step::Pull),
            (Policy::Always, true, some, Step::Wait(some)),
            (Policy::IfNotPresent, true, some, Step::Use),
            (Policy::IfNotPresent, false, none, Step::Pull),
            (Policy::IfNotPresent, false, some, Step::Wait(some)),
            (Policy::Never, true, none, Step::Use),
            (Policy::Never, false, none, Step::Never),
        ] {
            assert_eq!(policy.choose(present, remaining), want, "{policy:?} {present}");
        }
    }

    #[test]
    fn unset_policies_follow_the_tag() {
        let of = |image: &str| {
            Policy::of(&serde_json::from_value(serde_json::json!({"name": "c", "image": image})).expect("a container"))
        };
        assert_eq!(of("nginx"), Policy::Always);
        assert_eq!(of("nginx:latest"), Policy::Always);
        assert_eq!(of("nginx:1"), Policy::IfNotPresent);
        assert_eq!(of(&format!("nginx@sha256:{}", "0".repeat(64))), Policy::IfNotPresent);
    }

    #[test]
    fn durations_read_as_gos() {
        let of = |millis| go_duration(Duration::from_millis(millis));
        assert_eq!(
            [0, 640, 1000, 1203, 1250, 61_500, 3_600_000].map(of),
            ["0s", "640ms", "1s", "1.203s", "1.25s", "1m1.5s", "1h0m0s"]
        );
    }
}
