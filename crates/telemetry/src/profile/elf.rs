//! As much of a program's file as a stack is unwound and named by: where its tables lie, and which build it is.
//! Files are the host's own, and what is wrong in one is only not found.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Sections and segments that are looked at.
const MOST: usize = 256;
/// The largest section that is read.
const LONGEST: u64 = 64 << 20;

/// A section: where the file says it lies in memory, and what is in it.
#[derive(Clone, Debug, Default)]
pub struct Section {
    pub addresses: Range<u64>,
    pub bytes: Vec<u8>,
}

/// The table of its functions and the names in it, by offset in the file and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbols {
    pub table: (u64, u64),
    pub strings: (u64, u64),
}

/// What is known of a file.
#[derive(Clone, Debug, Default)]
pub struct Elf {
    pub text: Option<Range<u64>>,
    pub got: Option<Range<u64>>,
    pub eh_frame: Option<Section>,
    pub eh_frame_hdr: Option<Section>,
    /// In hexadecimal; empty where there is none.
    pub build_id: String,
    /// The table of all functions, else of those that other files may use.
    pub symbols: Option<Symbols>,
    /// It is of all: the file was not stripped.
    pub named: bool,
    /// What is loaded: offset in the file, address, and length.
    pub loads: Vec<(u64, u64, u64)>,
}

pub fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(N)?)?;
    Some(part.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

fn read(file: &File, from: u64, length: u64) -> Option<Vec<u8>> {
    if length > LONGEST {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, from).ok()?;
    Some(bytes)
}

impl Elf {
    /// Reads a file; `None` for what is no program of 64 bits, little end first.
    pub fn read(file: &File) -> Option<Self> {
        let head = read(file, 0, 64)?;
        if !head.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let mut elf = Self::default();
        let (segments, sections) = (number::<8>(&head, 32)?, number::<8>(&head, 40)?);
        let [_, segment_count, section_size, section_count, names] =
            [54, 56, 58, 60, 62].map(|at| number::<2>(&head, at).unwrap_or_default());
        let table = read(file, segments, 56 * segment_count.min(MOST as u64))?;
        for segment in table.chunks_exact(56) {
            const LOAD: u64 = 1;
            if number::<4>(segment, 0)? == LOAD {
                elf.loads.push((number::<8>(segment, 8)?, number::<8>(segment, 16)?, number::<8>(segment, 32)?));
            }
        }
        if section_size != 64 {
            return Some(elf);
        }
        let table = read(file, sections, 64 * section_count.min(MOST as u64))?;
        let place =
            |section: &[u8]| Some((number::<8>(section, 16)?, number::<8>(section, 24)?, number::<8>(section, 32)?));
        let named = table.chunks_exact(64).nth(usize::try_from(names).ok()?)?;
        let (_, at, length) = place(named)?;
        let names = read(file, at, length)?;
        let mut tables: [Option<(u64, u64)>; 4] = [None; 4];
        for section in table.chunks_exact(64) {
            let from = usize::try_from(number::<4>(section, 0)?).ok()?;
            let name = names.get(from..).and_then(|rest| rest.split(|byte| *byte == 0).next()).unwrap_or_default();
            let (address, at, length) = place(section)?;
            let addresses = address..address.checked_add(length)?;
            let whole = || read(file, at, length).map(|bytes| Section { addresses: addresses.clone(), bytes });
            match name {
                b".text" => elf.text = Some(addresses),
                b".got" => elf.got = Some(addresses),
                b".eh_frame" => elf.eh_frame = whole(),
                b".eh_frame_hdr" => elf.eh_frame_hdr = whole(),
                b".note.gnu.build-id" => elf.build_id = whole().map(|note| build_id(&note.bytes)).unwrap_or_default(),
                b".symtab" => tables[0] = Some((at, length)),
                b".strtab" => tables[1] = Some((at, length)),
                b".dynsym" => tables[2] = Some((at, length)),
                b".dynstr" => tables[3] = Some((at, length)),
                _ => {}
            }
        }
        let [all, names, exported, exported_names] = tables;
        let of = |table: Option<(u64, u64)>, strings| Some(Symbols { table: table?, strings: strings? });
        elf.symbols = of(all, names);
        elf.named = elf.symbols.is_some();
        elf.symbols = elf.symbols.or_else(|| of(exported, exported_names));
        Some(elf)
    }

    /// How far from where the file says it is loaded, when the byte at `offset` lies at `start`.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let holds = |(at, _, length): &&(u64, u64, u64)| {
            // What is mapped begins at a page's begin.
            const PAGE: u64 = 0xffff;
            (at & !PAGE..at.saturating_add(*length)).contains(&offset)
        };
        let (at, address, _) = self.loads.iter().rev().find(holds)?;
        Some(start.wrapping_sub(address.wrapping_add(offset.wrapping_sub(*at))))
    }
}

/// The description of a note named GNU.
fn build_id(note: &[u8]) -> String {
    let (name, length) = (number::<4>(note, 0).unwrap_or_default(), number::<4>(note, 4).unwrap_or_default());
    let from = 12 + usize::try_from(name.next_multiple_of(4)).unwrap_or(usize::MAX - 12);
    let length = usize::try_from(length).unwrap_or_default();
    let id = from.checked_add(length).and_then(|to| note.get(from..to)).unwrap_or_default();
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file that lies in memory and whose bytes are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub addresses: Range<u64>,
    /// Where in the file.
    pub offset: u64,
    pub path: String,
}

/// Reads `/proc/…/maps`.
pub fn mapped(maps: &str) -> Vec<Mapped> {
    let line = |line: &str| {
        let mut words = line.splitn(6, ' ').map(str::trim);
        let (addresses, rights, offset) = (words.next()?, words.next()?, words.next()?);
        let path = words.nth(2).filter(|path| path.starts_with('/') && rights.contains('x'))?;
        let (from, to) = addresses.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        Some(Mapped { addresses: hex(from)?..hex(to)?, offset: hex(offset)?, path: path.to_owned() })
    };
    maps.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_run_is_found_in_the_maps() {
        let maps = "\
55d0c0000000-55d0c0100000 r--p 00000000 08:01 1 /usr/bin/pintle
55d0c0100000-55d0c1000000 r-xp 00100000 08:01 1                          /usr/bin/a b
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
what is no line
";
        let want = Mapped {
            addresses: 0x55d0_c010_0000..0x55d0_c100_0000,
            offset: 0x10_0000,
            path: "/usr/bin/a b".to_owned(),
        };
        assert_eq!(mapped(maps), [want]);
    }

    #[test]
    fn this_program_can_be_read() {
        let elf = Elf::read(&File::open("/proc/self/exe").expect("opened")).expect("a program");
        let (text, frames) = (elf.text.clone().expect("code"), elf.eh_frame.clone().expect("frames"));
        assert!(!text.is_empty() && !frames.bytes.is_empty() && !elf.loads.is_empty());
        // Where this very function is, the maps and the file agree.
        let here = this_program_can_be_read as *const () as u64;
        let maps = mapped(&std::fs::read_to_string("/proc/self/maps").expect("maps"));
        let own = maps.iter().find(|m| m.addresses.contains(&here)).expect("mapped");
        let bias = elf.bias(own.addresses.start, own.offset).expect("loaded");
        assert!(text.contains(&here.wrapping_sub(bias)), "{here:x} {bias:x} {text:x?}");
    }

    #[test]
    fn what_is_no_program_is_none() {
        let mut file = tempfile::tempfile().expect("a file");
        assert!(Elf::read(&file).is_none());
        std::io::Write::write_all(&mut file, &[b"\x7fELF\x02\x01".as_slice(), &[0xff; 300]].concat()).expect("written");
        assert!(Elf::read(&file).is_none());
        assert_eq!(build_id(&[0xff; 16]), "");
        assert_eq!(build_id(b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\xab\x01"), "ab01");
    }
}
