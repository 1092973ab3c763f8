//! Frames: what a connection's bytes say, and back.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::headers::{Packer, Unpacker};
use super::{Headers, Wrong};

/// The longest control frame: what its compressed headers need, several times over.
const LARGEST: usize = 64 * 1024;
/// Data is handed on in pieces of at most this.
pub const PIECE: usize = 32 * 1024;
/// No more settings in one frame than there are kinds of them, several times over.
const MOST_SETTINGS: u32 = 64;
/// How long the head of a frame is.
pub const HEAD: usize = 8;
const FIN: u8 = 1;
const UNIDIRECTIONAL: u8 = 2;
const ID: u32 = 0x7fff_ffff;

/// What can be said. Streams have numbers: odd ones were opened by the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A stream begins (SYN_STREAM); `fin`: and whoever began it has nothing to say on it.
    Open {
        id: u32,
        headers: Headers,
        fin: bool,
        one_way: bool,
    },
    /// The other end has taken it (SYN_REPLY).
    Reply {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    /// Bytes of a stream; `fin`: the last ones of this direction.
    Data {
        id: u32,
        bytes: Bytes,
        fin: bool,
    },
    /// A stream is over, both ways (RST_STREAM).
    Reset {
        id: u32,
        status: u32,
    },
    /// Only what the peer takes at first before it must have said more (SETTINGS).
    Settings {
        window: Option<u32>,
    },
    Ping {
        id: u32,
    },
    /// No more streams (GOAWAY).
    GoAway {
        last: u32,
        status: u32,
    },
    Headers {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    /// The peer takes so many bytes more (WINDOW_UPDATE); of stream 0: of all streams together.
    Window {
        id: u32,
        more: u32,
    },
}

mod kind {
    pub const SYN_STREAM: u16 = 1;
    pub const SYN_REPLY: u16 = 2;
    pub const RST_STREAM: u16 = 3;
    pub const SETTINGS: u16 = 4;
    pub const PING: u16 = 6;
    pub const GOAWAY: u16 = 7;
    pub const HEADERS: u16 = 8;
    pub const WINDOW_UPDATE: u16 = 9;
}

/// The setting that says how much is taken at first.
const INITIAL_WINDOW: u32 = 7;

/// Reads frames from bytes as they come.
pub struct Decoder {
    /// `None`: nobody looks at headers.
    unpacker: Option<Unpacker>,
    /// The data frame under way: its stream, what is still to come of it, and whether it ends the stream.
    data: Option<(u32, usize, bool)>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { unpacker: Some(Unpacker::new()), data: None }
    }
}

impl Decoder {
    /// Gives frames without their headers: for who looks at none, and holds nothing to read them with.
    pub fn without_headers() -> Self {
        Self { unpacker: None, data: None }
    }

    fn headers(&mut self, packed: &[u8]) -> Result<Headers, Wrong> {
        self.unpacker.as_mut().map_or_else(|| Ok(Headers::new()), |unpacker| unpacker.unpack(packed))
    }

    /// The next frame, or `None` until there are more bytes. Frames that nobody knows are passed over.
    ///
    /// # Errors
    /// When it is no frame, or too large: then the connection is of no more use.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, Wrong> {
        loop {
            if let Some((id, left, fin)) = self.data {
                let piece = left.min(input.len()).min(PIECE);
                if piece == 0 && left > 0 {
                    return Ok(None);
                }
                let left = left - piece;
                self.data = (left > 0).then_some((id, left, fin));
                let bytes = input.split_to(piece).freeze();
                return Ok(Some(Frame::Data { id, bytes, fin: fin && left == 0 }));
            }
            let Some(mut head) = input.get(..HEAD) else { return Ok(None) };
            let (first, second) = (head.get_u32(), head.get_u32());
            let (flags, length) = ((second >> 24) as u8, (second & 0xff_ffff) as usize);
            if first & !ID == 0 {
                input.advance(HEAD);
                self.data = Some((first, length, flags & FIN != 0));
                continue;
            }
            if (first >> 16) & 0x7fff != 3 {
                return Err(Wrong::Version);
            }
            if length > LARGEST {
                return Err(Wrong::TooLarge("control frame"));
            }
            if input.len() < HEAD + length {
                return Ok(None);
            }
            input.advance(HEAD);
            let payload = input.split_to(length);
            if let Some(frame) = self.control((first & 0xffff) as u16, flags, &payload)? {
                return Ok(Some(frame));
            }
        }
    }

    fn control(&mut self, kind: u16, flags: u8, mut payload: &[u8]) -> Result<Option<Frame>, Wrong> {
        let fin = flags & FIN != 0;
        let name = match kind {
            kind::SYN_STREAM => "SYN_STREAM",
            kind::SYN_REPLY => "SYN_REPLY",
            kind::RST_STREAM => "RST_STREAM",
            kind::SETTINGS => "SETTINGS",
            kind::PING => "PING",
            kind::GOAWAY => "GOAWAY",
            kind::HEADERS => "HEADERS",
            kind::WINDOW_UPDATE => "WINDOW_UPDATE",
            _ => return Ok(None),
        };
        let mut number = || payload.try_get_u32().map_err(|_| Wrong::Frame(name));
        let first = number()?;
        let id = first & ID;
        let frame = match kind {
            kind::SYN_STREAM => {
                // The stream it belongs to, its priority and its slot: nothing here goes by them.
                number()?;
                payload.try_get_u16().map_err(|_| Wrong::Frame(name))?;
                let headers = self.headers(payload)?;
                return Ok(Some(Frame::Open { id, headers, fin, one_way: flags & UNIDIRECTIONAL != 0 }));
            }
            kind::SYN_REPLY => return Ok(Some(Frame::Reply { id, headers: self.headers(payload)?, fin })),
            kind::HEADERS => return Ok(Some(Frame::Headers { id, headers: self.headers(payload)?, fin })),
            kind::RST_STREAM => Frame::Reset { id, status: number()? },
            kind::SETTINGS => {
                if first > MOST_SETTINGS {
                    return Err(Wrong::TooLarge("SETTINGS frame"));
                }
                let mut window = None;
                for _ in 0..first {
                    let (setting, value) = (number()? & 0xff_ffff, number()?);
                    if setting == INITIAL_WINDOW {
                        window = Some(value);
                    }
                }
                Frame::Settings { window }
            }
            kind::PING => Frame::Ping { id: first },
            kind::GOAWAY => Frame::GoAway { last: id, status: number()? },
            _ => Frame::Window { id, more: number()? & ID },
        };
        if payload.is_empty() { Ok(Some(frame)) } else { Err(Wrong::Frame(name)) }
    }
}

/// Writes frames.
pub struct Encoder(Packer);

impl Default for Encoder {
    fn default() -> Self {
        Self(Packer::new())
    }
}

impl Encoder {
    /// Appends the head of a frame of so many bytes of data, which are to follow.
    ///
    /// # Errors
    /// When they are more than a frame can hold.
    pub fn data_head(id: u32, length: usize, fin: bool, out: &mut Vec<u8>) -> Result<(), Wrong> {
        let length = u32::try_from(length).ok().filter(|n| *n <= 0xff_ffff);
        out.put_u32(id & ID);
        out.put_u32(u32::from(if fin { FIN } else { 0 }) << 24 | length.ok_or(Wrong::TooLarge("data frame"))?);
        Ok(())
    }

    /// Appends the bytes of a frame.
    ///
    /// # Errors
    /// When it is longer than frames can be.
    pub fn write(&mut self, frame: &Frame, out: &mut Vec<u8>) -> Result<(), Wrong> {
        let flag = |fin: bool| if fin { FIN } else { 0 };
        let numbers = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
        let (kind, flags, payload) = match frame {
            Frame::Data { id, bytes, fin } => {
                Self::data_head(*id, bytes.len(), *fin, out)?;
                out.extend_from_slice(bytes);
                return Ok(());
            }
            Frame::Open { id, headers, fin, one_way } => {
                let mut payload = numbers(&[*id & ID, 0]);
                payload.put_u16(0);
                self.0.pack(headers, &mut payload)?;
                (kind::SYN_STREAM, flag(*fin) | if *one_way { UNIDIRECTIONAL } else { 0 }, payload)
            }
            Frame::Reply { id, headers, fin } => {
                let mut payload = numbers(&[*id & ID]);
                self.0.pack(headers, &mut payload)?;
                (kind::SYN_REPLY, flag(*fin), payload)
            }
            Frame::Headers { id, headers, fin } => {
                let mut payload = numbers(&[*id & ID]);
                self.0.pack(headers, &mut payload)?;
                (kind::HEADERS, flag(*fin), payload)
            }
            Frame::Reset { id, status } => (kind::RST_STREAM, 0, numbers(&[*id & ID, *status])),
            Frame::Settings { window: None } => (kind::SETTINGS, 0, numbers(&[0])),
            Frame::Settings { window: Some(window) } => (kind::SETTINGS, 0, numbers(&[1, INITIAL_WINDOW, *window])),
            Frame::Ping { id } => (kind::PING, 0, numbers(&[*id])),
            Frame::GoAway { last, status } => (kind::GOAWAY, 0, numbers(&[*last & ID, *status])),
            Frame::Window { id, more } => (kind::WINDOW_UPDATE, 0, numbers(&[*id & ID, *more & ID])),
        };
        let length = u32::try_from(payload.len()).ok().filter(|n| *n <= 0xff_ffff);
        out.put_u32(0x8003_0000 | u32::from(kind));
        out.put_u32(u32::from(flags) << 24 | length.ok_or(Wrong::TooLarge("control frame"))?);
        out.extend_from_slice(&payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn headers() -> impl Strategy<Value = Headers> {
        vec(("[a-z-]{1,12}", "[ -~]{0,40}"), 0..6)
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let id = || 0..=ID;
        prop_oneof![
            (id(), headers(), any::<bool>(), any::<bool>()).prop_map(|(id, headers, fin, one_way)| Frame::Open {
                id,
                headers,
                fin,
                one_way
            }),
            (id(), headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::Reply { id, headers, fin }),
            (id(), headers(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::Headers { id, headers, fin }),
            (id(), vec(any::<u8>(), 0..300), any::<bool>()).prop_map(|(id, bytes, fin)| Frame::Data {
                id,
                bytes: bytes.into(),
                fin
            }),
            (id(), any::<u32>()).prop_map(|(id, status)| Frame::Reset { id, status }),
            any::<Option<u32>>().prop_map(|window| Frame::Settings { window }),
            any::<u32>().prop_map(|id| Frame::Ping { id }),
            (id(), any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
            (id(), id()).prop_map(|(id, more)| Frame::Window { id, more }),
        ]
    }

    /// All that the bytes say, fed in pieces, with the pieces of one data frame joined.
    fn read(bytes: &[u8], cuts: &[usize]) -> Result<Vec<Frame>, Wrong> {
        let (mut decoder, mut input, mut out) = (Decoder::default(), BytesMut::new(), Vec::new());
        let mut open: Option<(u32, Vec<u8>)> = None;
        let mut rest = bytes;
        let mut sizes = cuts.iter().cycle();
        loop {
            while let Some(frame) = decoder.next(&mut input)? {
                let whole = decoder.data.is_none();
                match frame {
                    Frame::Data { id, bytes, fin } => {
                        let (_, gathered) = open.get_or_insert_with(|| (id, Vec::new()));
                        gathered.extend_from_slice(&bytes);
                        if whole {
                            let bytes = open.take().map(|(_, bytes)| bytes).unwrap_or_default().into();
                            out.push(Frame::Data { id, bytes, fin });
                        }
                    }
                    frame => out.push(frame),
                }
            }
            if rest.is_empty() {
                return Ok(out);
            }
            let size = sizes.next().copied().unwrap_or(1).clamp(1, rest.len());
            input.extend_from_slice(&rest[..size]);
            rest = &rest[size..];
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_whatever_the_cuts(frames in vec(frames(), 0..12), cuts in vec(1_usize..40, 1..8)) {
            let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
            for frame in &frames {
                encoder.write(frame, &mut bytes).expect("written");
            }
            prop_assert_eq!(read(&bytes, &cuts), Ok(frames));
        }

        #[test]
        fn any_bytes_are_answered(bytes in vec(any::<u8>(), 0..400), kind in 0_u16..12, cuts in vec(1_usize..40, 1..8)) {
            drop(read(&bytes, &cuts));
            // And as the payload of a frame that is known.
            let mut framed = (0x8003_0000 | u32::from(kind)).to_be_bytes().to_vec();
            framed.extend_from_slice(&u32::try_from(bytes.len()).expect("short").to_be_bytes());
            framed.extend_from_slice(&bytes);
            drop(read(&framed, &cuts));
        }
    }

    #[test]
    fn long_data_comes_in_pieces_and_long_control_frames_not_at_all() {
        let mut input = BytesMut::new();
        input.put_u32(5);
        input.put_u32(0x0100_0000 | 70_000);
        input.extend_from_slice(&[7; 40_000]);
        let mut decoder = Decoder::default();
        let mut sizes = Vec::new();
        while let Some(Frame::Data { bytes, fin, id: 5 }) = decoder.next(&mut input).expect("data") {
            sizes.push((bytes.len(), fin));
        }
        input.extend_from_slice(&[7; 30_000]);
        while let Some(Frame::Data { bytes, fin, id: 5 }) = decoder.next(&mut input).expect("data") {
            sizes.push((bytes.len(), fin));
        }
        assert_eq!(sizes, [(PIECE, false), (40_000 - PIECE, false), (30_000, true)]);
        let mut input = BytesMut::new();
        input.put_u32(0x8003_0001);
        input.put_u32(0xff_ffff);
        assert_eq!(decoder.next(&mut input), Err(Wrong::TooLarge("control frame")));
        for other in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x80, 2, 0, 1, 0, 0, 0, 0]] {
            let got = Decoder::default().next(&mut BytesMut::from(other));
            // Text is taken for data of a stream that nobody has.
            assert!(matches!(got, Err(Wrong::Version) | Ok(Some(Frame::Data { id: 0x4745_5420, .. }))), "{got:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_passed_over() {
        let mut input = BytesMut::new();
        input.extend_from_slice(&[0x80, 3, 0, 99, 0, 0, 0, 2, 1, 2]);
        let mut ping = Vec::new();
        Encoder::default().write(&Frame::Ping { id: 9 }, &mut ping).expect("written");
        input.extend_from_slice(&ping);
        assert_eq!(Decoder::default().next(&mut input), Ok(Some(Frame::Ping { id: 9 })));
    }
}
