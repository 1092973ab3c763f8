//! Header blocks: names and values, compressed with what both ends have seen before.

use bytes::{Buf, BufMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use super::dictionary::DICTIONARY;
use super::{Headers, Wrong};

/// The largest block, once it is not compressed any more.
pub const LARGEST: usize = 64 * 1024;
/// Pairs in one block.
const MOST: usize = 128;

/// Compresses the blocks of one direction of a connection, in order.
pub struct Packer(Compress);

impl Packer {
    pub fn new() -> Self {
        let mut compress = Compress::new(Compression::best(), true);
        // Fails only once something was compressed.
        if let Err(error) = compress.set_dictionary(&DICTIONARY) {
            tracing::error!(%error, "headers are compressed without a dictionary");
        }
        Self(compress)
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
        let mut rest = plain.as_slice();
        loop {
            out.reserve(rest.len().max(64));
            let before = self.0.total_in();
            self.0.compress_vec(rest, out, FlushCompress::Sync).map_err(|_| Wrong::Headers)?;
            let taken = usize::try_from(self.0.total_in() - before).map_err(|_| Wrong::Headers)?;
            rest = rest.get(taken..).ok_or(Wrong::Headers)?;
            // Room that is left says that nothing is held back.
            if rest.is_empty() && out.len() < out.capacity() {
                return Ok(());
            }
        }
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

    fn pairs(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn blocks_depend_on_those_before() {
        let (mut packer, mut unpacker) = (Packer::new(), Unpacker::new());
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
            lengths.push(block.len());
        }
        assert!(lengths[1] < lengths[0], "{lengths:?}");
    }

    #[test]
    fn a_direction_begins_with_the_dictionarys_checksum() {
        let mut packer = Packer::new();
        let mut block = Vec::new();
        packer.pack(&pairs(&[("streamtype", "error")]), &mut block).expect("packed");
        // The header of zlib, with the flag of a dictionary, and that dictionary's checksum.
        assert_eq!(block[..6], [0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2]);
        assert_eq!(block[block.len() - 4..], [0, 0, 0xff, 0xff]);
    }

    #[test]
    fn a_block_that_grows_is_refused() {
        let mut block = Vec::new();
        Packer::new().pack(&pairs(&[("x", &" ".repeat(8 << 20))]), &mut block).expect("packed");
        assert!(block.len() < 64 * 1024, "{}", block.len());
        assert_eq!(Unpacker::new().unpack(&block), Err(Wrong::TooLarge("header block")));
        let mut block = Vec::new();
        let many: Vec<_> = (0..=MOST).map(|n| (n.to_string(), String::new())).collect();
        Packer::new().pack(&many, &mut block).expect("packed");
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
