//! Signals by name, as pods ask to be ended with, and by the numbers of the runtime's interface and of
//! the kernel. Pure.

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The runtime's interface's number.
    pub runtime: i32,
    /// The kernel's.
    pub kernel: u32,
}

/// Name, kernel's number; in the order in which the interface counts them, from 1 on.
const NAMED: [(&str, u32); 34] = [
    ("SIGABRT", 6),
    ("SIGALRM", 14),
    ("SIGBUS", 7),
    ("SIGCHLD", 17),
    ("SIGCLD", 17),
    ("SIGCONT", 18),
    ("SIGFPE", 8),
    ("SIGHUP", 1),
    ("SIGILL", 4),
    ("SIGINT", 2),
    ("SIGIO", 29),
    ("SIGIOT", 6),
    ("SIGKILL", 9),
    ("SIGPIPE", 13),
    ("SIGPOLL", 29),
    ("SIGPROF", 27),
    ("SIGPWR", 30),
    ("SIGQUIT", 3),
    ("SIGSEGV", 11),
    ("SIGSTKFLT", 16),
    ("SIGSTOP", 19),
    ("SIGSYS", 31),
    ("SIGTERM", 15),
    ("SIGTRAP", 5),
    ("SIGTSTP", 20),
    ("SIGTTIN", 21),
    ("SIGTTOU", 22),
    ("SIGURG", 23),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGVTALRM", 26),
    ("SIGWINCH", 28),
    ("SIGXCPU", 24),
    ("SIGXFSZ", 25),
];
/// The first and the last signal that mean nothing by themselves.
const RT_MIN: u32 = 34;
const RT_MAX: u32 = 64;

impl Signal {
    /// A signal by its name.
    pub fn named(name: &str) -> Option<Self> {
        let of = |kernel: u32| Self { runtime: i32::try_from(kernel).unwrap_or(0) + 1, kernel };
        if let Some(rest) = name.strip_prefix("SIGRTMIN") {
            let more = if rest.is_empty() { 0 } else { rest.strip_prefix('+')?.parse::<u32>().ok()? };
            return (more <= 15).then(|| of(RT_MIN + more));
        }
        if let Some(rest) = name.strip_prefix("SIGRTMAX") {
            let less = if rest.is_empty() { 0 } else { rest.strip_prefix('-')?.parse::<u32>().ok()? };
            return (less <= 14).then(|| of(RT_MAX - less));
        }
        let at = NAMED.iter().position(|(known, _)| *known == name)?;
        Some(Self { runtime: i32::try_from(at).ok()? + 1, kernel: NAMED[at].1 })
    }

    /// The name of the interface's number.
    pub fn name(runtime: i32) -> Option<String> {
        let number = u32::try_from(runtime).ok().filter(|n| *n > 0)?;
        if let Some((name, _)) = NAMED.get(number as usize - 1) {
            return Some((*name).to_owned());
        }
        match number - 1 {
            RT_MIN => Some("SIGRTMIN".into()),
            n if (RT_MIN..RT_MIN + 16).contains(&n) => Some(format!("SIGRTMIN+{}", n - RT_MIN)),
            RT_MAX => Some("SIGRTMAX".into()),
            n if (RT_MIN + 16..RT_MAX).contains(&n) => Some(format!("SIGRTMAX-{}", RT_MAX - n)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let rows = [
            ("SIGABRT", Some((1, 6))),
            ("SIGTERM", Some((23, 15))),
            ("SIGUSR1", Some((29, 10))),
            ("SIGXFSZ", Some((34, 25))),
            ("SIGRTMIN", Some((35, 34))),
            ("SIGRTMIN+1", Some((36, 35))),
            ("SIGRTMIN+15", Some((50, 49))),
            ("SIGRTMAX-14", Some((51, 50))),
            ("SIGRTMAX-1", Some((64, 63))),
            ("SIGRTMAX", Some((65, 64))),
            ("SIGRTMIN+16", None),
            ("SIGRTMAX+1", None),
            ("TERM", None),
            ("", None),
        ];
        for (name, want) in rows {
            let found = Signal::named(name);
            assert_eq!(found.map(|s| (s.runtime, s.kernel)), want, "{name}");
            if let Some(found) = found {
                assert_eq!(Signal::name(found.runtime).as_deref(), Some(name));
            }
        }
        assert_eq!((Signal::name(0), Signal::name(66), Signal::name(-1)), (None, None, None));
    }
}
