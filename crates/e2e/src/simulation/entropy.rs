//! Takes the kernel's randomness away from a process, so that one seed means one run.
//!
//! Hash maps iterate in an order that the standard library draws from `getrandom(2)`. Whoever walks
//! a map decides by it: which pod first, which request first. A simulation must find such code and
//! then be able to repeat what it found, so this file puts a `getrandom` of its own before the C
//! library's. Until [`fix`] is called it hands on to the kernel.

use std::sync::atomic::{AtomicU64, Ordering};

/// 0: ask the kernel.
static STATE: AtomicU64 = AtomicU64::new(0);

/// From here on this process draws its randomness from `seed`. There is no way back.
pub fn fix(seed: u64) {
    STATE.store(seed | 1 << 63, Ordering::SeqCst);
}

/// The next number of the stream; `None` while the kernel is to be asked.
fn next() -> Option<u64> {
    // SplitMix64: one addition per number, so that concurrent callers never share one.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let state = STATE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |s| match s {
        0 => None,
        s => Some(s.wrapping_add(STEP).max(1)),
    });
    let mut z = state.ok()?;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(z ^ (z >> 31))
}

/// The C library's function of this name, as `std`, `getrandom` and `ring` find it.
///
/// # Safety
/// As the C library's: `buffer` must be valid for writes of `length` bytes.
#[allow(unsafe_code, reason = "the symbol the standard library calls can only be replaced like this")]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: libc::size_t, flags: libc::c_uint) -> libc::ssize_t {
    let mut done = 0;
    while done < length {
        let Some(number) = next() else {
            // SAFETY: the arguments are the caller's own, handed on unchanged to the system call
            // this function stands for.
            let got = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
            return got as libc::ssize_t;
        };
        let bytes = number.to_le_bytes();
        let part = bytes.len().min(length - done);
        // SAFETY: the caller vouches for `length` bytes at `buffer`, and `done + part <= length`;
        // `bytes` is a local array of at least `part` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>().add(done), part) };
        done += part;
    }
    libc::ssize_t::try_from(length).unwrap_or(libc::ssize_t::MAX)
}
