//! Header blocks: names and values, compressed with what both ends have seen before.

use bytes::{Buf, BufMut};
use flate2::{Decompress, FlushDecompress};

use super::dictionary::{CHECKSUM, DICTIONARY};
use super::{Headers, Wrong};

/// The largest block, once it is not compressed any more.
pub const LARGEST: usize = 64 * 1024;
/// Pairs in one block.
const MOST: usize = 128;

/// Writes the blocks of one direction of a connection, in order. They are zlib's in form only: what is written
/// are a dozen short words a connection, for which a compressor would hold a quarter of a megabyte.
pub struct Packer {
    begun: bool,
}

impl Packer {
    pub fn new() -> Self {
        Self { begun: false }
    }

    /// Appends the block of these headers.
    pub fn pack(&mut self, headers: &[(String, String)], out: &mut Vec<u8>) -> Result<(), Wrong> {
        let long = |text: &str| u32::try_from(text.len()).map_err(|_| Wrong::Headers);
        let mut plain = Vec::new();
        plain.put_u32(u32::try_from(headers.len()).map_err(|_| Wrong::Headers)?);
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.put_u32(long(text)?);
            plain.extend_from_slice(text.as_bytes());
        }
        if !std::mem::replace(&mut self.begun, true) {
            // The head of a stream that begins with a dictionary, and that dictionary's checksum.
            out.put_u16(0x78f9);
            out.put_u32(CHECKSUM);
        }
        // The last one is empty: so much is to be given out by now (a flush).
        for piece in plain.chunks(usize::from(u16::MAX)).chain([&[][..]]) {
            let length = u16::try_from(piece.len()).map_err(|_| Wrong::Headers)?;
            out.put_u8(0);
            out.put_u16_le(length);
            out.put_u16_le(!length);
            out.extend_from_slice(piece);
        }
        Ok(())
    }
}

/// The other way.
pub struct Unpacker(Decompress);

impl Unpacker {
    pub fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// Reads one block.
    pub fn unpack(&mut self, packed: &[u8]) -> Result<Headers, Wrong> {
        let plain = self.inflate(packed)?;
        let mut rest = plain.as_slice();
        let count = rest.try_get_u32().map_err(|_| Wrong::Headers)?;
        if count as usize > MOST {
            return Err(Wrong::TooLarge("header block"));
        }
        let mut text = || -> Result<String, Wrong> {
            let length = rest.try_get_u32().map_err(|_| Wrong::Headers)? as usize;
            let (text, left) = rest.split_at_checked(length).ok_or(Wrong::Headers)?;
            rest = left;
            String::from_utf8(text.to_vec()).map_err(|_| Wrong::Headers)
        };
        let headers = (0..count).map(|_| Ok((text()?, text()?))).collect::<Result<Headers, Wrong>>()?;
        if rest.is_empty() { Ok(headers) } else { Err(Wrong::Headers) }
    }

    fn inflate(&mut self, packed: &[u8]) -> Result<Vec<u8>, Wrong> {
        let (mut rest, mut plain, mut piece) = (packed, Vec::new(), [0; 4096]);
        loop {
            let (read, written) = (self.0.total_in(), self.0.total_out());
            let done = self.0.decompress(rest, &mut piece, FlushDecompress::Sync);
            let taken = usize::try_from(self.0.total_in() - read).map_err(|_| Wrong::Headers)?;
            let given = usize::try_from(self.0.total_out() - written).map_err(|_| Wrong::Headers)?;
            rest = rest.get(taken..).ok_or(Wrong::Headers)?;
            plain.extend_from_slice(piece.get(..given).ok_or(Wrong::Headers)?);
            if plain.len() > LARGEST {
                return Err(Wrong::TooLarge("header block"));
            }
            match done {
                Ok(flate2::Status::StreamEnd) => return Err(Wrong::Headers),
                Ok(_) if rest.is_empty() && given < piece.len() => return Ok(plain),
                Ok(_) if taken == 0 && given == 0 => return Err(Wrong::Headers),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&DICTIONARY).map_err(|_| Wrong::Headers)?;
                }
                Err(_) => return Err(Wrong::Headers),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compress, Compression, FlushCompress};

    fn pairs(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// As others do it: compressed with what came before.
    struct Compressor(Compress);

    impl Compressor {
        fn new() -> Self {
            let mut compress = Compress::new(Compression::best(), true);
            compress.set_dictionary(&DICTIONARY).expect("nothing was compressed yet");
            Self(compress)
        }

        fn pack(&mut self, headers: &Headers) -> Vec<u8> {
            let mut stored = Vec::new();
            Packer { begun: true }.pack(headers, &mut stored).expect("packed");
            let plain = inflated(&stored);
            let mut out = Vec::with_capacity(plain.len() + 1000);
            self.0.compress_vec(&plain, &mut out, FlushCompress::Sync).expect("compressed");
            out
        }
    }

    /// What blocks hold that are stored as they are.
    fn inflated(stored: &[u8]) -> Vec<u8> {
        let mut plain = Vec::with_capacity(stored.len());
        Decompress::new(false).decompress_vec(stored, &mut plain, FlushDecompress::Sync).expect("stored");
        plain
    }

    #[test]
    fn blocks_are_read_again() {
        let (mut packer, mut compressor) = (Packer::new(), Compressor::new());
        let (mut unpacker, mut depending) = (Unpacker::new(), Unpacker::new());
        let mut lengths = Vec::new();
        for headers in [
            pairs(&[("streamtype", "stdin"), ("port", "8080"), ("requestid", "1")]),
            pairs(&[("streamtype", "stdin"), ("port", "8080"), ("requestid", "2")]),
            pairs(&[]),
            pairs(&[("x", &"y".repeat(40_000))]),
        ] {
            let mut block = Vec::new();
            packer.pack(&headers, &mut block).expect("packed");
            assert_eq!(unpacker.unpack(&block).as_ref(), Ok(&headers));
            // And those that cannot be read without the ones before.
            let block = compressor.pack(&headers);
            assert_eq!(depending.unpack(&block).as_ref(), Ok(&headers));
            lengths.push(block.len());
        }
        assert!(lengths[1] < lengths[0], "{lengths:?}");
    }

    #[test]
    fn a_direction_begins_with_the_dictionarys_checksum() {
        let begin = [0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2];
        let headers = pairs(&[("streamtype", "error")]);
        let mut packer = Packer::new();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        packer.pack(&headers, &mut first).expect("packed");
        packer.pack(&headers, &mut second).expect("packed");
        assert_eq!((&first[..6], &first[6..]), (&begin[..], second.as_slice()));
        assert_eq!(Compressor::new().pack(&headers)[..6], begin);
        for block in [first, second] {
            assert_eq!(block[block.len() - 4..], [0, 0, 0xff, 0xff]);
        }
    }

    #[test]
    fn a_block_that_grows_is_refused() {
        let bomb = Compressor::new().pack(&pairs(&[("x", &" ".repeat(8 << 20))]));
        assert!(bomb.len() < 64 * 1024, "{}", bomb.len());
        assert_eq!(Unpacker::new().unpack(&bomb), Err(Wrong::TooLarge("header block")));
        let many: Vec<_> = (0..=MOST).map(|n| (n.to_string(), String::new())).collect();
        let block = Compressor::new().pack(&many);
        assert_eq!(Unpacker::new().unpack(&block), Err(Wrong::TooLarge("header block")));
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let mut block = Vec::new();
        Packer::new().pack(&pairs(&[("a", "b")]), &mut block).expect("packed");
        for cut in 0..block.len() {
            let got = Unpacker::new().unpack(&block[..cut]);
            // Only the mark of the flush may be missing.
            assert!(got.is_err() || cut >= block.len() - 6, "{cut} of {}: {got:?}", block.len());
        }
    }
}
