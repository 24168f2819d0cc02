//! One gzip member from a part that is compressed once and a part that changes with every scrape.
//!
//! Deflate blocks that end in a full flush are byte-aligned and refer to nothing before them, so
//! compressed parts can be joined as they are (RFC 1951, section 3.2.4; RFC 1952 for the frame).

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// Deflate, no name, no time, unknown operating system (RFC 1952, section 2.3).
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// A compressed part, with what the member's trailer needs to know of it.
#[derive(Debug)]
pub struct Part {
    deflated: Bytes,
    crc: Crc,
}

/// Compresses a part that others follow.
pub fn part(plain: &[u8]) -> Part {
    let mut crc = Crc::new();
    crc.update(plain);
    Part { deflated: deflate(plain, FlushCompress::Full).into(), crc }
}

/// One member of a compressed part and, after it, the last part.
pub fn member(first: &Part, last: &[u8]) -> Vec<u8> {
    let tail = deflate(last, FlushCompress::Finish);
    let mut last_crc = Crc::new();
    last_crc.update(last);
    let mut crc = Crc::new();
    crc.combine(&first.crc);
    crc.combine(&last_crc);
    let mut out = Vec::with_capacity(HEADER.len() + first.deflated.len() + tail.len() + 8);
    out.extend_from_slice(&HEADER);
    out.extend_from_slice(&first.deflated);
    out.extend_from_slice(&tail);
    out.extend_from_slice(&crc.sum().to_le_bytes());
    out.extend_from_slice(&crc.amount().to_le_bytes());
    out
}

/// Raw deflate, fast: expositions repeat themselves, more effort saves little.
fn deflate(plain: &[u8], flush: FlushCompress) -> Vec<u8> {
    let mut compress = Compress::new(Compression::fast(), false);
    let mut out = Vec::with_capacity(plain.len() / 4 + 64);
    loop {
        let read = usize::try_from(compress.total_in()).unwrap_or(usize::MAX);
        let rest = plain.get(read..).unwrap_or_default();
        match compress.compress_vec(rest, &mut out, flush) {
            Ok(Status::StreamEnd) => break,
            // Room that is left over means that the flush is complete.
            Ok(_) if flush != FlushCompress::Finish && rest.is_empty() && out.len() < out.capacity() => break,
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "the exposition could not be compressed");
                break;
            }
        }
        if out.len() == out.capacity() {
            out.reserve(out.capacity());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixture;
    use std::io::Read;

    fn unzip(member: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(member).read_to_end(&mut plain).unwrap();
        plain
    }

    #[test]
    fn joined_parts_are_one_member() {
        let noise: Vec<u8> = (0_u32..300_000).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let lines = b"modeldeployment_up{pod=\"\"} 1\n".repeat(40_000);
        for first in [&b""[..], b"a", &noise, &lines] {
            for last in [&b""[..], b"# EOF\n", &lines[..5000]] {
                let member = member(&part(first), last);
                let whole = [first, last].concat();
                assert_eq!(unzip(&member), whole);
                let (status, plain) = fixture::run("gzip", &["-dc"], &member);
                assert!(status && plain == whole, "gzip reads {} bytes of {}", plain.len(), whole.len());
            }
        }
    }

    #[test]
    fn repetition_is_compressed() {
        let lines = b"modeldeployment_up{pod=\"\"} 1\n".repeat(4000);
        assert!(member(&part(&lines), b"").len() < lines.len() / 10);
    }
}
