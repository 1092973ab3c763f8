//! The words that compressed headers begin from: SPDY/3 fixes them, byte by byte.

use std::sync::LazyLock;

/// Those with their length before them; `|` stands for a space within one.
const WORDS: &str = "\
    options head post put delete trace accept accept-charset accept-encoding accept-language \
    accept-ranges age allow authorization cache-control connection content-base content-encoding \
    content-language content-length content-location content-md5 content-range content-type date etag \
    expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since \
    last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer \
    retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate \
    method get status 200|OK version HTTP/1.1 url public set-cookie keep-alive origin";

/// What follows them.
const REST: &str = "\
    100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Au\
    thoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidd\
    en404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr Ma\
    y Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,imag\
    e/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicpri\
    vatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// What a stream names it by.
pub const CHECKSUM: u32 = 0xe3c6_a7c2;

pub static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::with_capacity(1423);
    for word in WORDS.split(' ') {
        let word = word.replace('|', " ");
        bytes.extend_from_slice(&u32::try_from(word.len()).unwrap_or(0).to_be_bytes());
        bytes.extend_from_slice(word.as_bytes());
    }
    bytes.extend_from_slice(REST.as_bytes());
    bytes
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_one_that_everybody_has() {
        let (mut low, mut high) = (1_u32, 0_u32);
        for byte in DICTIONARY.iter() {
            low = (low + u32::from(*byte)) % 65_521;
            high = (high + low) % 65_521;
        }
        assert_eq!((DICTIONARY.len(), high << 16 | low), (1423, CHECKSUM));
    }
}
