//! The wire format: tags, varints, lengths.

/// One field as it stands on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field<'b> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'b [u8]),
    Fixed32(#[expect(dead_code, reason = "no built-in type has one; it is only skipped")] u32),
}

/// The bytes end too early or are no fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken;

pub(super) struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn varint(&mut self) -> Result<u64, Broken> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.bytes.split_first().ok_or(Broken)?;
            self.bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Broken)
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], Broken> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Broken)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// How many bytes have not been read.
    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    /// More varints to come, when the bytes are a packed list.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next field; `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, Field<'b>)>, Broken> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).map_err(|_| Broken)?;
        if tag == 0 {
            return Err(Broken);
        }
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Broken)?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Broken)?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| Broken)?)),
            _ => return Err(Broken),
        };
        Ok(Some((tag, field)))
    }
}

fn raw_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn varint(out: &mut Vec<u8>, tag: u32, value: u64) {
    raw_varint(out, u64::from(tag) << 3);
    raw_varint(out, value);
}

pub(super) fn fixed64(out: &mut Vec<u8>, tag: u32, value: u64) {
    raw_varint(out, (u64::from(tag) << 3) | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn bytes(out: &mut Vec<u8>, tag: u32, value: &[u8]) {
    head(out, tag, value.len());
    out.extend_from_slice(value);
}

/// What stands before so many bytes of a field.
pub(super) fn head(out: &mut Vec<u8>, tag: u32, length: usize) {
    raw_varint(out, (u64::from(tag) << 3) | 2);
    raw_varint(out, length as u64);
}

/// How many bytes a varint takes.
pub(super) fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Starts a nested message; [`end`] puts its length in front.
pub(super) fn begin(out: &mut Vec<u8>, tag: u32) -> usize {
    raw_varint(out, (u64::from(tag) << 3) | 2);
    out.push(0);
    out.len()
}

/// Ends the nested message that begins at `at`. Most are shorter than 128 bytes, and stay in place.
pub(super) fn end(out: &mut Vec<u8>, at: usize) {
    let length = out.len() - at;
    if length < 0x80 {
        out[at - 1] = length as u8;
        return;
    }
    let mut prefix = Vec::with_capacity(5);
    raw_varint(&mut prefix, length as u64);
    out.splice(at - 1..at, prefix);
}
