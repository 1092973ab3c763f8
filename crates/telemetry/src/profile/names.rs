//! Names of functions, from the table that a program has where it was not stripped, or from the file that has
//! what was stripped from it.
//!
//! Only what was seen is looked up: the table is walked piece by piece, and of its names, which are many megabytes,
//! only those are read that are told. They are told as the compiler has written them; `pprof` reads that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::elf::{Elf, Symbols, number};

/// Where distributions put what was stripped from a program, by its build.
const DEBUG: &str = "/usr/lib/debug/.build-id";
/// A symbol in the table, and how many are read at once.
const SYMBOL: usize = 24;
const AT_ONCE: usize = 16 * 1024;
/// A table that is larger is not walked.
const LARGEST: u64 = 256 << 20;
/// No longer name is told.
const LONGEST: usize = 2048;

/// Names by the addresses in their functions.
#[derive(Debug, Default)]
pub struct Names {
    pub of: BTreeMap<u64, String>,
    /// All functions were looked through: who has the program with its names would find no more.
    pub whole: bool,
}

/// The names of the functions that these addresses are in, as the file says where they lie.
pub fn find(file: &File, elf: &Elf, addresses: &BTreeSet<u64>) -> Names {
    let stripped = || {
        let file = File::open(debug_file(Path::new(DEBUG), &elf.build_id)?).ok()?;
        let whole = Elf::read(&file).filter(|whole| whole.named && whole.build_id == elf.build_id)?;
        Some(walk(&file, &whole.symbols?, addresses))
    };
    if !elf.named
        && let Some(of) = stripped()
    {
        return Names { of, whole: true };
    }
    // What a program exports by name is better than nothing.
    let of = elf.symbols.as_ref().map(|symbols| walk(file, symbols, addresses)).unwrap_or_default();
    Names { of, whole: elf.named }
}

/// `…/ab/cdef.debug` of the build `abcdef`.
fn debug_file(folder: &Path, build_id: &str) -> Option<PathBuf> {
    let (first, rest) = build_id.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    build_id.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| folder.join(first).join(format!("{rest}.debug")))
}

/// A function: where it begins, and where its name stands.
#[derive(Clone, Copy)]
struct Function {
    from: u64,
    name: u64,
}

fn walk(file: &File, symbols: &Symbols, addresses: &BTreeSet<u64>) -> BTreeMap<u64, String> {
    let (from, length) = symbols.table;
    let mut found: BTreeMap<u64, Function> = BTreeMap::new();
    if addresses.is_empty() || length > LARGEST {
        return BTreeMap::new();
    }
    let mut piece = vec![0; SYMBOL * AT_ONCE];
    let (mut at, end) = (from, from.saturating_add(length - length % SYMBOL as u64));
    while at < end {
        let size = usize::try_from(end - at).unwrap_or(usize::MAX).min(piece.len());
        if file.read_exact_at(&mut piece[..size], at).is_err() {
            break;
        }
        for symbol in piece[..size].chunks_exact(SYMBOL) {
            note(symbol, addresses, &mut found);
        }
        at += size as u64;
    }
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    for function in found.values() {
        names.entry(function.name).or_insert_with(|| name(file, symbols, function.name));
    }
    let told = found.into_iter().map(|(address, function)| (address, names.get(&function.name).cloned()));
    told.filter_map(|(address, name)| Some((address, name.filter(|name| !name.is_empty())?))).collect()
}

/// A symbol of the table: of what holds an address, the innermost counts.
fn note(symbol: &[u8], addresses: &BTreeSet<u64>, found: &mut BTreeMap<u64, Function>) {
    const FUNCTION: u8 = 2;
    let get = || {
        let (name, kind) = (number::<4>(symbol, 0)?, symbol.get(4)? & 0xf);
        let (section, from, length) = (number::<2>(symbol, 6)?, number::<8>(symbol, 8)?, number::<8>(symbol, 16)?);
        let to = from.checked_add(length)?;
        (kind == FUNCTION && section != 0 && from < to).then_some((Function { from, name }, to))
    };
    let Some((function, to)) = get() else { return };
    for address in addresses.range(function.from..to) {
        let known = found.entry(*address).or_insert(function);
        if known.from < function.from {
            *known = function;
        }
    }
}

fn name(file: &File, symbols: &Symbols, at: u64) -> String {
    let (from, length) = symbols.strings;
    let left = length.saturating_sub(at).min(LONGEST as u64);
    let mut bytes = vec![0; usize::try_from(left).unwrap_or(LONGEST)];
    match from.checked_add(at).map(|at| file.read_exact_at(&mut bytes, at)) {
        Some(Ok(())) => {}
        _ => return String::new(),
    }
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: u32, kind: u8, section: u16, from: u64, length: u64) -> Vec<u8> {
        let mut out = name.to_le_bytes().to_vec();
        out.extend([kind, 0]);
        out.extend(section.to_le_bytes());
        out.extend(from.to_le_bytes());
        out.extend(length.to_le_bytes());
        out
    }

    #[test]
    fn addresses_have_the_name_of_the_innermost_function() {
        let table = [
            symbol(1, 2, 1, 0x1000, 0x100),
            symbol(7, 0x12, 1, 0x1010, 0x10),
            symbol(13, 1, 1, 0x1010, 0x8),
            symbol(13, 2, 0, 0x1010, 0x8),
            symbol(13, 2, 1, 0x3000, 0),
            symbol(u32::MAX, 2, 1, 0x4000, 8),
            symbol(13, 2, 1, u64::MAX - 1, 8),
        ]
        .concat();
        let mut file = tempfile::tempfile().expect("a file");
        let strings = b"\0outer\0inner\0data\0";
        std::io::Write::write_all(&mut file, &[&table[..], strings].concat()).expect("written");
        let symbols =
            Symbols { table: (0, table.len() as u64 + 5), strings: (table.len() as u64, strings.len() as u64) };
        let addresses = [0xfff, 0x1000, 0x1010, 0x101f, 0x1020, 0x10ff, 0x1100, 0x3000, 0x4000];
        let found = walk(&file, &symbols, &addresses.into());
        let want = [(0x1000, "outer"), (0x1010, "inner"), (0x101f, "inner"), (0x1020, "outer"), (0x10ff, "outer")];
        assert_eq!(found, want.map(|(address, name)| (address, name.to_owned())).into());
        // A table that ends early, or is not there.
        for symbols in
            [Symbols { table: (0, 1 << 20), ..symbols.clone() }, Symbols { table: (u64::MAX, 48), ..symbols }]
        {
            walk(&file, &symbols, &addresses.into());
        }
    }

    #[test]
    fn this_function_has_its_name() {
        let file = File::open("/proc/self/exe").expect("opened");
        let elf = Elf::read(&file).expect("a program");
        let here = this_function_has_its_name as *const () as u64;
        let maps = super::super::elf::mapped(&std::fs::read_to_string("/proc/self/maps").expect("maps"));
        let own = maps.iter().find(|m| m.addresses.contains(&here)).expect("mapped");
        let address = here.wrapping_sub(elf.bias(own.addresses.start, own.offset).expect("loaded"));
        let found = find(&file, &elf, &[address].into());
        assert!(found.of.get(&address).is_some_and(|name| name.contains("this_function_has_its_name")), "{found:?}");
        assert!(found.whole);
        // What is only exported is not all.
        let exported = find(&file, &Elf { named: false, build_id: String::new(), ..elf }, &[address].into());
        assert!(!exported.whole);
    }

    #[test]
    fn what_was_stripped_is_found_by_the_build() {
        let at = |id: &str| debug_file(Path::new("/d"), id).map(|path| path.display().to_string());
        assert_eq!(at("abcdef").as_deref(), Some("/d/ab/cdef.debug"));
        for wrong in ["", "a", "ab", "../../etc", "ab/../x"] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }
}
