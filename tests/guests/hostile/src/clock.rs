//! Waits without using CPU time, on every guest target.

#[cfg(target_os = "wasi")]
pub fn wait(time_ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(time_ms));
}

/// Without WASI, the standard library cannot wait. The host offers a clock anyway.
#[cfg(not(target_os = "wasi"))]
pub fn wait(time_ms: u64) {
    wasi::clocks::monotonic_clock::subscribe_duration(time_ms * 1_000_000).block();
}

#[cfg(not(target_os = "wasi"))]
wit_bindgen::generate!({
    inline: "
        package hostile:clock;

        world clock {
            import wasi:clocks/monotonic-clock@0.2.0;
        }

        package wasi:clocks@0.2.0 {
            interface monotonic-clock {
                use wasi:io/poll@0.2.0.{pollable};
                type duration = u64;
                subscribe-duration: func(when: duration) -> pollable;
            }
        }

        package wasi:io@0.2.0 {
            interface poll {
                resource pollable {
                    block: func();
                }
            }
        }
    ",
    world: "clock",
    generate_all,
});
