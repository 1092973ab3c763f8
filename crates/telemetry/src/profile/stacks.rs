//! What was seen, and how often: the stacks of a profile, and the files that their addresses are in.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;

use framehop::{CacheNative, ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder, UnwinderNative};

use super::elf::{self, Elf, Mapped};
use super::format::{Function, Line, Location, Mapping, Profile, Sample, ValueType};
use super::names;

/// Stacks that are told apart, and addresses in all of them together (8 MB); of those beyond it is only said how many
/// there were.
const STACKS: usize = 50_000;
const ADDRESSES: usize = 1 << 20;
/// As deep as a stack is told.
const DEEPEST: usize = 256;

/// A file in memory, and what is known of it.
struct Known {
    mapped: Mapped,
    /// Without its tables of frames, which are the unwinder's.
    elf: Elf,
    /// As it is on the disk, and how far from where it says it lies in memory.
    file: Option<(File, u64)>,
}

/// The registers that a stack is unwound from.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub ip: u64,
    pub sp: u64,
    /// The frame's.
    pub fp: u64,
    /// Where to return to, on processors that keep it in a register.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "the stack has it"))]
    pub lr: u64,
}

impl Registers {
    #[cfg(target_arch = "x86_64")]
    fn unwound(self) -> framehop::UnwindRegsNative {
        framehop::UnwindRegsNative::new(self.ip, self.sp, self.fp)
    }

    #[cfg(target_arch = "aarch64")]
    fn unwound(self) -> framehop::UnwindRegsNative {
        framehop::UnwindRegsNative::new(self.lr, self.sp, self.fp)
    }
}

/// Stacks, each as often as it was seen.
pub struct Stacks {
    files: Vec<Known>,
    unwinder: UnwinderNative<Vec<u8>, framehop::MayAllocateDuringUnwind>,
    cache: CacheNative<framehop::MayAllocateDuringUnwind>,
    seen: HashMap<Vec<u64>, i64>,
    /// The addresses in all of them.
    addresses: usize,
    /// How many were beyond the bound.
    beyond: i64,
}

impl Stacks {
    /// Of the process with these maps.
    pub fn of(maps: &str) -> Self {
        let (mut files, mut unwinder) = (Vec::new(), UnwinderNative::new());
        for mapped in elf::mapped(maps) {
            let file = File::open(&mapped.path).ok();
            let mut elf = file.as_ref().and_then(Elf::read).unwrap_or_default();
            let bias = elf.bias(mapped.addresses.start, mapped.offset);
            if let Some(bias) = bias {
                unwinder.add_module(module(&mut elf, &mapped, bias));
            }
            files.push(Known { mapped, elf, file: file.zip(bias) });
        }
        Self { files, unwinder, cache: CacheNative::new(), seen: HashMap::new(), addresses: 0, beyond: 0 }
    }

    /// One more, as its registers and a copy of the stack from its top tell.
    pub fn add(&mut self, registers: Registers, stack: &[u8]) {
        let mut read = |address: u64| {
            let from = address.checked_sub(registers.sp).and_then(|from| usize::try_from(from).ok()).ok_or(())?;
            let word = from.checked_add(8).and_then(|to| stack.get(from..to)).ok_or(())?;
            word.try_into().map(u64::from_le_bytes).map_err(|_| ())
        };
        let mut frames = self.unwinder.iter_frames(registers.ip, registers.unwound(), &mut self.cache, &mut read);
        let mut found = Vec::new();
        // One whose end is not in the copy is told as far as it goes.
        while let Ok(Some(frame)) = frames.next() {
            found.push(FrameAddress::address_for_lookup(frame));
            if found.len() == DEEPEST {
                break;
            }
        }
        if let Some(count) = self.seen.get_mut(&found) {
            *count += 1;
        } else if self.seen.len() < STACKS && self.addresses + found.len() <= ADDRESSES {
            self.addresses += found.len();
            self.seen.insert(found, 1);
        } else {
            self.beyond += 1;
        }
    }

    /// The profile of them all: each stands for `period` nanoseconds.
    pub fn profile(self, period: i64, comment: &str) -> Profile {
        let mut texts = Texts::default();
        let kind =
            |texts: &mut Texts, name: &str, unit: &str| ValueType { r#type: texts.at(name), unit: texts.at(unit) };
        let (samples, cpu) = (kind(&mut texts, "samples", "count"), kind(&mut texts, "cpu", "nanoseconds"));
        let mut mapping: Vec<Mapping> = Vec::new();
        for (id, Known { mapped, elf, .. }) in (1..).zip(&self.files) {
            mapping.push(Mapping {
                id,
                memory_start: mapped.addresses.start,
                memory_limit: mapped.addresses.end,
                file_offset: mapped.offset,
                filename: texts.at(&mapped.path),
                build_id: texts.at(&elf.build_id),
                has_functions: false,
            });
        }
        let mut locations: BTreeMap<u64, Location> = BTreeMap::new();
        let mut sample = Vec::with_capacity(self.seen.len());
        for (stack, count) in self.seen {
            let mut location_id = Vec::with_capacity(stack.len());
            for address in stack {
                let id = locations.len() as u64 + 1;
                let of = mapping.iter().find(|m| (m.memory_start..m.memory_limit).contains(&address));
                let new = || Location { id, mapping_id: of.map_or(0, |m| m.id), address, line: Vec::new() };
                location_id.push(locations.entry(address).or_insert_with(new).id);
            }
            sample.push(Sample { location_id, value: vec![count, count.saturating_mul(period)] });
        }
        let mut comments = vec![texts.at(comment)];
        if self.beyond > 0 {
            comments.push(texts.at(&format!("{} samples are not told: there were too many stacks", self.beyond)));
        }
        let mut location: Vec<Location> = locations.into_values().collect();
        location.sort_by_key(|location| location.id);
        let function = name(&self.files, &mut mapping, &mut location, &mut texts);
        Profile {
            sample_type: vec![samples, cpu],
            sample,
            mapping,
            location,
            function,
            string_table: texts.0,
            time_nanos: 0,
            duration_nanos: 0,
            period_type: Some(cpu),
            period,
            comment: comments,
        }
    }
}

/// Gives places the names of their functions, as far as they are known; gives the functions.
fn name(files: &[Known], mapping: &mut [Mapping], location: &mut [Location], texts: &mut Texts) -> Vec<Function> {
    let mut functions: BTreeMap<i64, Function> = BTreeMap::new();
    for (known, mapping) in files.iter().zip(mapping) {
        let Some((file, bias)) = &known.file else { continue };
        let of = mapping.id;
        let is_here = move |place: &&mut Location| place.mapping_id == of;
        let addresses = location.iter_mut().filter(is_here).map(|place| place.address.wrapping_sub(*bias)).collect();
        let names = names::find(file, &known.elf, &addresses);
        mapping.has_functions = names.whole && !names.of.is_empty();
        for place in location.iter_mut().filter(is_here) {
            let Some(name) = names.of.get(&place.address.wrapping_sub(*bias)) else { continue };
            let (name, id) = (texts.at(name), functions.len() as u64 + 1);
            let function = functions.entry(name).or_insert(Function { id, name, system_name: name });
            place.line = vec![Line { function_id: function.id }];
        }
    }
    functions.into_values().collect()
}

/// Takes the tables of frames out of what is known of a file.
fn module(elf: &mut Elf, mapped: &Mapped, bias: u64) -> Module<Vec<u8>> {
    let (eh_frame, eh_frame_hdr) = (elf.eh_frame.take(), elf.eh_frame_hdr.take());
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: elf.text.clone(),
        got_svma: elf.got.clone(),
        eh_frame_svma: eh_frame.as_ref().map(|section| section.addresses.clone()),
        eh_frame: eh_frame.map(|section| section.bytes),
        eh_frame_hdr_svma: eh_frame_hdr.as_ref().map(|section| section.addresses.clone()),
        eh_frame_hdr: eh_frame_hdr.map(|section| section.bytes),
        ..ExplicitModuleSectionInfo::default()
    };
    Module::new(mapped.path.clone(), mapped.addresses.clone(), bias, sections)
}

/// Texts, each once, and where they stand; the first is empty.
struct Texts(Vec<String>, HashMap<String, i64>);

impl Default for Texts {
    fn default() -> Self {
        Self(vec![String::new()], HashMap::from([(String::new(), 0)]))
    }
}

impl Texts {
    fn at(&mut self, text: &str) -> i64 {
        if let Some(at) = self.1.get(text) {
            return *at;
        }
        let at = i64::try_from(self.0.len()).unwrap_or_default();
        self.0.push(text.to_owned());
        self.1.insert(text.to_owned(), at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_counted_and_their_addresses_stand_once() {
        let mut stacks = Stacks::of("1000-2000 r-xp 00000000 00:00 0 /none\n");
        let at = |ip| Registers { ip, sp: 0, fp: 0, lr: 0 };
        [0x1500, 0x1500, 0x9000].iter().for_each(|ip| stacks.add(at(*ip), &[]));
        let mut profile = stacks.profile(10, "a word");
        profile.sample.sort_by(|a, b| b.value.cmp(&a.value));
        let told: Vec<&[i64]> = profile.sample.iter().map(|sample| sample.value.as_slice()).collect();
        assert_eq!(told, [[2, 20], [1, 10]]);
        let place = |sample: usize| {
            let id = profile.sample[sample].location_id[0];
            profile.location.iter().find(|l| l.id == id).map(|l| (l.address, l.mapping_id))
        };
        assert_eq!((place(0), place(1)), (Some((0x1500, 1)), Some((0x9000, 0))));
        assert!(profile.string_table.starts_with(&[String::new()]) && profile.string_table.contains(&"a word".into()));
        assert_eq!(profile.string_table.iter().filter(|text| text.is_empty()).count(), 1);
    }

    /// What the kernel has copied of a thread, wherever it lets us look or not: frames that are chained by their
    /// pointers, the innermost with twice as much room as the next.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_copy_of_a_stack_is_followed_to_its_end() {
        const TOP: u64 = 0x7000;
        let mut stack = vec![0u8; 64];
        let mut put = |at: u64, word: u64| {
            let at = usize::try_from(at - TOP).expect("near");
            stack[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        for (frame, next, caller) in [(TOP + 16, TOP + 32, 0x2000), (TOP + 32, TOP + 48, 0x3000), (TOP + 48, 0, 0)] {
            put(frame, next);
            put(frame + 8, caller);
        }
        let registers = Registers { ip: 0x1500, sp: TOP, fp: TOP + 16, lr: 0 };
        let mut stacks = Stacks::of("");
        stacks.add(registers, &stack);
        // Of a call the place is told that called, not the one that is returned to.
        assert_eq!(stacks.seen.into_keys().collect::<Vec<_>>(), [[0x1500, 0x1fff, 0x2fff]]);
        // A copy that is cut is told as far as it goes.
        let mut stacks = Stacks::of("");
        stacks.add(registers, &stack[..32]);
        assert_eq!(stacks.seen.into_keys().collect::<Vec<_>>(), [[0x1500, 0x1fff]]);
    }

    #[test]
    fn there_are_not_too_many_stacks() {
        let mut stacks = Stacks::of("");
        for ip in 0..STACKS as u64 + 7 {
            stacks.add(Registers { ip: ip + 1, sp: 0, fp: 0, lr: 0 }, &[]);
        }
        assert_eq!((stacks.seen.len(), stacks.beyond), (STACKS, 7));
        let profile = stacks.profile(1, "");
        assert!(profile.string_table.iter().any(|text| text.starts_with("7 samples are not told")));
        // Nor too many addresses in few of them; one that is known goes on being counted.
        let mut stacks = Stacks::of("");
        stacks.add(Registers { ip: 1, sp: 0, fp: 0, lr: 0 }, &[]);
        stacks.addresses = ADDRESSES;
        for ip in [1, 2, 1] {
            stacks.add(Registers { ip, sp: 0, fp: 0, lr: 0 }, &[]);
        }
        assert_eq!((stacks.seen.values().copied().collect::<Vec<_>>(), stacks.beyond), (vec![3], 1));
    }
}
