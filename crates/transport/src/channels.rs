//! Messages of a WebSocket that carry several streams: the first byte says which one (`channel.k8s.io` and
//! its versions).
//!
//! | channel | of exec and attach |
//! |---|---|
//! | 0 | what the process reads |
//! | 1, 2 | what it writes and what it complains |
//! | 3 | how it ended: a Status; before version 4 a text, if it went wrong |
//! | 4 | the size of the terminal: `{"Width":80,"Height":24}` |
//! | 255 | since version 5: the channel that follows has ended |

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};

use crate::websocket::Said;

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const ERROR: u8 = 3;
pub const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Every version, the newest first; the empty name is for clients that name none.
pub const ALL: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "",
];

/// How the messages of one connection are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoken {
    /// Channels can be ended one by one.
    pub closes: bool,
    /// How a process ended is told as a Status.
    pub status: bool,
    /// Messages are text: a digit, then base64.
    base64: bool,
}

impl Spoken {
    /// By the name of the subprotocol.
    pub fn of(protocol: &str) -> Option<Self> {
        let (closes, status, base64) = match protocol {
            "v5.channel.k8s.io" => (true, true, false),
            "v4.channel.k8s.io" => (false, true, false),
            "v4.base64.channel.k8s.io" => (false, true, true),
            "channel.k8s.io" | "" => (false, false, false),
            "base64.channel.k8s.io" => (false, false, true),
            _ => return None,
        };
        Some(Self { closes, status, base64 })
    }

    /// What a message says; `None` where it says nothing.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn read(self, said: Said) -> Result<Option<Heard>, Nonsense> {
        // Binary and text are told apart by what was agreed on, not by how a message was sent.
        let mut bytes = match said {
            Said::Binary(bytes) | Said::Text(bytes) => bytes,
        };
        if bytes.is_empty() {
            return Ok(None);
        }
        let first = bytes.split_to(1)[0];
        if self.base64 {
            let channel = first.checked_sub(b'0').filter(|channel| *channel < 10).ok_or(Nonsense)?;
            let bytes = STANDARD.decode(&bytes).map_err(|_| Nonsense)?;
            return Ok(Some(Heard::Data(channel, bytes.into())));
        }
        if self.closes && first == CLOSE {
            return match bytes[..] {
                [channel] => Ok(Some(Heard::Close(channel))),
                _ => Err(Nonsense),
            };
        }
        Ok(Some(Heard::Data(first, bytes)))
    }

    /// The message that says this on a channel (0 to 9).
    pub fn write(self, channel: u8, bytes: &[u8]) -> Said {
        if self.base64 {
            let mut text = char::from(b'0'.saturating_add(channel)).to_string();
            STANDARD.encode_string(bytes, &mut text);
            return Said::Text(text.into());
        }
        let mut message = BytesMut::with_capacity(bytes.len() + 1);
        message.extend_from_slice(&[channel]);
        message.extend_from_slice(bytes);
        Said::Binary(message.freeze())
    }
}

/// What was said on which channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Data(u8, Bytes),
    /// The client has nothing more to say on it.
    Close(u8),
}

/// A message that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message is malformed")]
pub struct Nonsense;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_of_every_version() {
        let binary = |bytes: &'static [u8]| Said::Binary(Bytes::from_static(bytes));
        let text = |text: &'static str| Said::Text(Bytes::from_static(text.as_bytes()));
        let data = |channel, bytes: &'static [u8]| Ok(Some(Heard::Data(channel, Bytes::from_static(bytes))));
        for (protocol, said, want) in [
            ("v5.channel.k8s.io", binary(b"\0hello"), data(0, b"hello")),
            ("v5.channel.k8s.io", binary(b"\xff\0"), Ok(Some(Heard::Close(0)))),
            ("v5.channel.k8s.io", binary(b"\xff"), Err(Nonsense)),
            ("v5.channel.k8s.io", binary(b"\xff\0x"), Err(Nonsense)),
            ("v5.channel.k8s.io", binary(b""), Ok(None)),
            ("v4.channel.k8s.io", binary(b"\xff\0"), data(255, b"\0")),
            ("channel.k8s.io", text("\u{4}{}"), data(4, b"{}")),
            ("v4.base64.channel.k8s.io", text("0aGVsbG8="), data(0, b"hello")),
            ("v4.base64.channel.k8s.io", text("0"), data(0, b"")),
            ("base64.channel.k8s.io", text("0%"), Err(Nonsense)),
            ("base64.channel.k8s.io", text("xaGVsbG8="), Err(Nonsense)),
        ] {
            let spoken = Spoken::of(protocol).expect("known");
            assert_eq!(spoken.read(said.clone()), want, "{protocol} {said:?}");
        }
        assert_eq!(Spoken::of("v4.base64.channel.k8s.io").expect("known").write(1, b"hello"), text("1aGVsbG8="));
        assert_eq!(Spoken::of("").expect("known").write(2, b"x"), binary(b"\x02x"));
        assert_eq!(Spoken::of("v6.channel.k8s.io"), None);
        assert!(ALL.iter().all(|name| Spoken::of(name).is_some()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(channel in 0_u8..10, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for protocol in ALL {
                let spoken = Spoken::of(protocol).expect("known");
                let read = spoken.read(spoken.write(channel, &bytes));
                prop_assert_eq!(read, Ok(Some(Heard::Data(channel, bytes.clone().into()))));
            }
        }

        #[test]
        fn any_message_is_answered(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            for protocol in ALL {
                let spoken = Spoken::of(protocol).expect("known");
                drop(spoken.read(Said::Binary(bytes.clone().into())));
                drop(spoken.read(Said::Text(bytes.clone().into())));
            }
        }
    }
}
