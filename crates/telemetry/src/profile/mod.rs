//! Where a process spends its time, told by itself: a profile of its processors in the form of `pprof`.
//!
//! ```text
//!  kernel (perf events of every thread) ─► registers and a copy of the stack, 99 times a second of work
//!       └─► stacks.rs unwinds by the program's own tables of frames ─► format.rs, zipped
//! ```
//!
//! Nothing of the process is interrupted for it: no signals are sent, and what is told of a thread the kernel
//! writes down. Functions have their names where the program's file has them, or where what was stripped from it
//! lies where debuggers look for it (`names.rs`); otherwise there are addresses, and the build they are of.

mod elf;
mod format;
mod names;
mod stacks;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};
use prost::Message;
use stdx::{ClockExt, SharedClock};

use stacks::{Registers, Stacks};

/// The longest time that is looked at.
pub const LONGEST: Duration = Duration::from_secs(300);
/// A look after so many nanoseconds of work: 99 times a second, so as to meet nothing that happens regularly.
const PERIOD: u64 = 10_101_010;
/// So much of a stack is copied.
const STACK: u32 = 16 * 1024;
/// Room for what was seen of one thread between two readings, in bytes: seven stacks.
const ROOM: usize = 128 * 1024;
/// How often that is read: before it is full.
const READ: Duration = Duration::from_millis(50);
/// Threads that are looked at.
const THREADS: usize = 512;

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody takes one already; try again when that is over.
    #[error("cpu profiling already in use")]
    InUse,
    #[error("the kernel does not let this process look at itself (see perf_event_open(2)): {0}")]
    Refused(std::io::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// A profile is taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

struct Turn;

impl Turn {
    fn take() -> Result<Self, Error> {
        let taken = TAKEN.swap(true, Ordering::AcqRel);
        if taken { Err(Error::InUse) } else { Ok(Self) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

/// Looks at this process for that long (at most [`LONGEST`]); gives the profile, zipped.
///
/// # Errors
/// When somebody else does, or the kernel refuses.
pub async fn take(length: Duration, clock: &SharedClock) -> Result<Vec<u8>, Error> {
    let _turn = Turn::take()?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut stacks = tokio::task::spawn_blocking(move || Stacks::of(&maps)).await.map_err(std::io::Error::other)?;
    let (began, wall) = (clock.now(), clock.wall());
    let mut threads = Threads::default();
    threads.look()?;
    loop {
        let spent = clock.now().since(began);
        let Some(left) = length.min(LONGEST).checked_sub(spent).filter(|left| !left.is_zero()) else { break };
        clock.sleep(left.min(READ)).await;
        (threads, stacks) = tokio::task::spawn_blocking(move || {
            threads.read(&mut stacks);
            (threads, stacks)
        })
        .await
        .map_err(std::io::Error::other)?;
        // Those that have begun since.
        threads.look()?;
    }
    let whole = if threads.kernel { "with" } else { "without" };
    let comment = format!(
        "{whole} the kernel's share; {} samples were lost, and {} threads left out",
        threads.lost,
        threads.left_out.len()
    );
    let spent = clock.now().since(began);
    let work = move || {
        let mut profile = stacks.profile(PERIOD.cast_signed(), &comment);
        profile.time_nanos = i64::try_from(wall.as_nanosecond()).unwrap_or_default();
        profile.duration_nanos = i64::try_from(spent.as_nanos()).unwrap_or(i64::MAX);
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zip.write_all(&profile.encode_to_vec())?;
        Ok(zip.finish()?)
    };
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// The threads that are looked at.
struct Threads {
    samplers: BTreeMap<i32, Sampler>,
    /// What they do in the kernel is seen, too.
    kernel: bool,
    lost: u64,
    /// Threads that there was no place for.
    left_out: BTreeSet<i32>,
}

impl Default for Threads {
    fn default() -> Self {
        Self { samplers: BTreeMap::new(), kernel: true, lost: 0, left_out: BTreeSet::new() }
    }
}

impl Threads {
    /// Begins to look at threads that are not looked at yet, and no longer looks at those that have ended.
    fn look(&mut self) -> Result<(), Error> {
        let mut there = BTreeSet::new();
        for entry in std::fs::read_dir("/proc/self/task")? {
            there.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        self.samplers.retain(|id, _| there.contains(id));
        for id in there {
            if self.samplers.contains_key(&id) {
                continue;
            }
            if self.samplers.len() >= THREADS {
                self.left_out.insert(id);
                continue;
            }
            match self.begin(id) {
                Ok(sampler) => drop(self.samplers.insert(id, sampler)),
                // It has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                Err(error) if self.samplers.is_empty() => return Err(Error::Refused(error)),
                Err(error) => tracing::debug!(%error, thread = id, "a thread is not in the profile"),
            }
        }
        Ok(())
    }

    fn begin(&mut self, id: i32) -> std::io::Result<Sampler> {
        let begun = start(id, self.kernel);
        match begun {
            // Who may not see the kernel may see itself.
            Err(error)
                if self.kernel && self.samplers.is_empty() && error.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                self.kernel = false;
                start(id, false)
            }
            begun => begun,
        }
    }

    /// Takes what was seen since.
    fn read(&mut self, stacks: &mut Stacks) {
        for sampler in self.samplers.values_mut() {
            while let Some(record) = sampler.next_record() {
                match record.parse_record() {
                    Ok(Record::Sample(sample)) => {
                        let known = sample.regs_user().and_then(|registers| self::registers(&registers.regs));
                        if let Some(known) = known {
                            stacks.add(known, sample.stack_user().unwrap_or_default());
                        }
                    }
                    Ok(Record::Lost(lost)) => self.lost += lost.lost,
                    _ => {}
                }
            }
        }
    }
}

fn start(id: i32, kernel: bool) -> std::io::Result<Sampler> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    builder
        .observe_pid(id)
        .any_cpu()
        .exclude_kernel(!kernel)
        .exclude_hv(true)
        .sample_period(PERIOD)
        .sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER)
        .sample_regs_user(MASK)
        .sample_stack_user(STACK);
    let mut sampler = builder.build()?.sampled(ROOM)?;
    sampler.enable()?;
    Ok(sampler)
}

/// Which registers the kernel copies, by its numbers for them; they come in that order.
#[cfg(target_arch = "x86_64")]
const MASK: u64 = 1 << 6 | 1 << 7 | 1 << 8;
#[cfg(target_arch = "aarch64")]
const MASK: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32;

#[cfg(target_arch = "x86_64")]
fn registers(copied: &[u64]) -> Option<Registers> {
    let [fp, sp, ip] = copied else { return None };
    Some(Registers { ip: *ip, sp: *sp, fp: *fp, lr: 0 })
}

#[cfg(target_arch = "aarch64")]
fn registers(copied: &[u64]) -> Option<Registers> {
    let [fp, lr, sp, ip] = copied else { return None };
    Some(Registers { ip: *ip, sp: *sp, fp: *fp, lr: *lr })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::Arc;
    use stdx::clock::RealClock;

    /// Works until it is told to stop.
    #[inline(never)]
    fn busy(stop: &AtomicBool) -> u64 {
        let mut sum = 1u64;
        while !stop.load(Ordering::Relaxed) {
            sum = std::hint::black_box(sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        sum
    }

    /// Does the kernel let us look at all?
    fn may_look() -> bool {
        Threads::default().look().is_ok()
    }

    #[tokio::test]
    async fn a_busy_thread_is_found_with_those_who_called_it() {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || busy(&told));
        let clock = RealClock::shared();
        let (first, second) = tokio::join!(take(READ, &clock), take(READ, &clock));
        // One at a time, of which the other is told.
        assert!(matches!(second, Err(Error::InUse)), "{second:?}");
        let mut taken = first;
        let here = busy as *const () as u64;
        // On a machine that has much to do the thread may get nothing for a while.
        for _ in 0..100 {
            let zipped = match taken {
                Ok(zipped) => zipped,
                Err(Error::Refused(error)) => {
                    eprintln!("no profile can be taken here: {error}");
                    break;
                }
                Err(error) => panic!("{error}"),
            };
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(&zipped[..]).read_to_end(&mut bytes).expect("unzipped");
            let profile = format::Profile::decode(&bytes[..]).expect("a profile");
            let address = |id: &u64| profile.location.iter().find(|l| l.id == *id).map_or(0, |l| l.address);
            // The function is small.
            let is_busy = |id: &u64| (here..here + 4096).contains(&address(id));
            let found = profile.sample.iter().find(|sample| sample.location_id.iter().take(4).any(is_busy));
            let Some(found) = found else {
                taken = take(Duration::from_millis(200), &clock).await;
                continue;
            };
            assert!(found.location_id.len() > 3, "those who called it are missing: {found:?}");
            let own = profile.mapping.iter().find(|m| (m.memory_start..m.memory_limit).contains(&here));
            let name = &profile.string_table[usize::try_from(own.expect("mapped").filename).expect("a place")];
            assert!(name.contains("telemetry"), "{name}");
            // A test has not been stripped.
            let text = |at: i64| &profile.string_table[usize::try_from(at).expect("a place")];
            let function = |id: &u64| {
                let line = profile.location.iter().find(|l| l.id == *id)?.line.first()?;
                profile.function.iter().find(|f| f.id == line.function_id).map(|f| text(f.name).clone())
            };
            let names: Vec<String> = found.location_id.iter().filter_map(function).collect();
            assert!(names.iter().take(4).any(|name| name.contains("busy")), "{names:?}");
            stop.store(true, Ordering::Relaxed);
            break;
        }
        let found = stop.swap(true, Ordering::Relaxed);
        thread.join().expect("it ended");
        assert!(found || !may_look(), "{here:x} is in none of the samples");
    }
}
