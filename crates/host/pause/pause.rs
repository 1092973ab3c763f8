//! The process that holds a PodSandbox's namespaces open. It does nothing else, so it is built
//! without a standard library: it lets the kernel reap orphans, waits, and ends on SIGTERM or SIGINT.
#![no_std]
#![no_main]

use core::arch::asm;

const SIGINT: isize = 2;
const SIGTERM: isize = 15;
const SIGCHLD: usize = 17;
const SIG_BLOCK: usize = 0;

/// The kernel's `struct sigaction`.
#[repr(C)]
struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

#[cfg(target_arch = "x86_64")]
mod number {
    pub const SIGACTION: usize = 13;
    pub const SIGPROCMASK: usize = 14;
    pub const SIGTIMEDWAIT: usize = 128;
    pub const EXIT_GROUP: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const SIGACTION: usize = 134;
    pub const SIGPROCMASK: usize = 135;
    pub const SIGTIMEDWAIT: usize = 137;
    pub const EXIT_GROUP: usize = 94;
}

/// SAFETY: callers pass a valid call number and pointers to live memory of the size it expects.
#[cfg(target_arch = "x86_64")]
unsafe fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let out: isize;
    // SAFETY: the x86-64 system call convention; rcx and r11 are clobbered by the kernel.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => out, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    out
}

/// SAFETY: callers pass a valid call number and pointers to live memory of the size it expects.
#[cfg(target_arch = "aarch64")]
unsafe fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let out: isize;
    // SAFETY: the AArch64 system call convention.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a as isize => out, in("x1") b, in("x2") c, in("x3") d,
             options(nostack));
    }
    out
}

/// The first instruction of the process; it never returns.
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    let all = u64::MAX;
    let ignore = Action { handler: 1, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: both structures live on this stack frame, and the sizes are the kernel's own.
    unsafe {
        syscall(number::SIGACTION, SIGCHLD, &raw const ignore as usize, 0, 8);
        syscall(number::SIGPROCMASK, SIG_BLOCK, &raw const all as usize, 0, 8);
        loop {
            let signal = syscall(number::SIGTIMEDWAIT, &raw const all as usize, 0, 0, 8);
            if signal == SIGTERM || signal == SIGINT {
                syscall(number::EXIT_GROUP, 0, 0, 0, 0);
            }
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
