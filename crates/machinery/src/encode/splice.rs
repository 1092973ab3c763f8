//! Puts the resourceVersion into stored bytes without parsing them: the store learns the revision
//! only when the bytes are already written.

/// The fields of metadata that stand before `resourceVersion`.
const BEFORE: [&[u8]; 5] = [b"name", b"generateName", b"namespace", b"selfLink", b"uid"];

/// `stored` with `metadata.resourceVersion` set to the revision, at the place where the encoder would
/// write it. Bytes without `metadata` come back as they are.
pub fn splice_resource_version(stored: &[u8], revision: u64) -> Vec<u8> {
    match place(stored) {
        None => stored.to_vec(),
        Some(Place { at, end, comma_before, comma_after }) => {
            let revision = revision.to_string();
            let mut out = Vec::with_capacity(stored.len() + revision.len() + 24);
            out.extend_from_slice(&stored[..at]);
            if comma_before {
                out.push(b',');
            }
            out.extend_from_slice(b"\"resourceVersion\":\"");
            out.extend_from_slice(revision.as_bytes());
            out.push(b'"');
            if comma_after {
                out.push(b',');
            }
            out.extend_from_slice(&stored[end..]);
            out
        }
    }
}

/// The bytes of a field of an object, without looking at those that follow it. The input must be JSON.
pub fn field<'j>(object: &'j [u8], name: &str) -> Option<&'j [u8]> {
    let mut scan = Scan { json: object, at: 0 };
    scan.expect(b'{')?;
    loop {
        let key = scan.key()?;
        scan.space();
        let start = scan.at;
        scan.skip_value()?;
        if key == name.as_bytes() {
            return object.get(start..scan.at);
        }
        scan.expect(b',')?;
    }
}

/// Where the field goes: `at..end` is replaced.
struct Place {
    at: usize,
    end: usize,
    comma_before: bool,
    comma_after: bool,
}

fn place(json: &[u8]) -> Option<Place> {
    let mut scan = Scan { json, at: 0 };
    scan.expect(b'{')?;
    loop {
        let key = scan.key()?;
        if key == b"metadata" {
            break;
        }
        scan.skip_value()?;
        scan.expect(b',')?;
    }
    scan.expect(b'{')?;
    let mut previous = scan.at;
    let mut any = false;
    loop {
        scan.space();
        if scan.peek() == Some(b'}') {
            return Some(Place { at: previous, end: previous, comma_before: any, comma_after: false });
        }
        let start = scan.at;
        let key = scan.key()?;
        if key == b"resourceVersion" {
            scan.skip_value()?;
            return Some(Place { at: start, end: scan.at, comma_before: false, comma_after: false });
        }
        if !BEFORE.contains(&key) {
            return Some(Place { at: start, end: start, comma_before: false, comma_after: true });
        }
        scan.skip_value()?;
        previous = scan.at;
        any = true;
        scan.space();
        if scan.peek() == Some(b',') {
            scan.at += 1;
        }
    }
}

struct Scan<'j> {
    json: &'j [u8],
    at: usize,
}

impl<'j> Scan<'j> {
    fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.space();
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// A key and the colon after it.
    fn key(&mut self) -> Option<&'j [u8]> {
        self.space();
        let start = self.at + 1;
        self.skip_string()?;
        let key = self.json.get(start..self.at - 1)?;
        self.expect(b':')?;
        Some(key)
    }

    fn skip_string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        loop {
            // Most of an object is text.
            self.at += memchr::memchr2(b'"', b'\\', self.json.get(self.at..)?)?;
            if self.json[self.at] == b'"' {
                self.at += 1;
                return Some(());
            }
            self.at += 2;
        }
    }

    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            self.space();
            match self.peek()? {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => self.at += 1,
                b',' | b':' => return None,
                _ => {
                    while self
                        .peek()
                        .is_some_and(|b| !matches!(b, b',' | b'}' | b']' | b':') && !b.is_ascii_whitespace())
                    {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}
