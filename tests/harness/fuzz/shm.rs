//! A server's side of a link in shared memory, whose worker writes anything: messages, words of its segment, the socket.

use std::sync::LazyLock;

use gradlane_core::identity::{Authority, Credentials};
use gradlane_core::transport::fuzzing::{Deed, Wanted, shm_link};
use gradlane_core::types::Role;
use gradlane_core::wire::{Header, samples};

use super::input::Input;
use super::{Kind, Memory, Target, random_inputs};

pub(super) const SHM_LINK: Target = Target {
    name: "shm_link",
    kind: Kind::Machine,
    check: link,
    seeds: || random_inputs(12, 200),
    memory: Memory { bytes: 1 << 20, times: 32 << 10 },
};

static CREDENTIALS: LazyLock<Credentials> = LazyLock::new(|| {
    let authority = Authority::create("fuzz").expect("the library has randomness");
    authority.credentials(Role::Server).expect("the library has randomness")
});

const DEEDS_MAX: usize = 200;

fn link(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut exchanges = 0;
    let deeds = std::iter::from_fn(|| (!input.is_empty()).then(|| deed(&mut input, &mut exchanges)));
    shm_link(&CREDENTIALS, deeds.take(DEEDS_MAX)).expect("memory for the segments");
}

fn deed(input: &mut Input<'_>, exchanges: &mut u64) -> Deed {
    match input.below(16) {
        0 => Deed::Scribble { word: u32::from(input.byte()), value: input.word() },
        1 => Deed::Scribble { word: u32::from_le_bytes(input.array()), value: input.word() },
        2..=4 => {
            *exchanges += 1;
            let headers: Vec<Vec<u8>> = samples::headers().iter().map(Header::encode).collect();
            let mut header = headers[usize::from(input.byte()) % headers.len()].clone();
            if input.byte() & 3 == 0 {
                let at = usize::from(input.byte()) % header.len();
                header[at] = input.byte();
            }
            let words = header[..64].chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
            Deed::Say([1, *exchanges].into_iter().chain(words).collect())
        }
        5..=7 => {
            // Data in a cell, or lent.
            let exchange = exchanges.saturating_sub(u64::from(input.below(4)));
            let (slot, bytes) = (u64::from(input.byte()), u64::from(u16::from_le_bytes(input.array())));
            match input.below(3) {
                0 => Deed::Say(vec![8, exchange, slot, bytes, u64::from(input.below(4)), u64::from(input.byte())]),
                _ => Deed::Say(vec![3, exchange, slot, bytes]),
            }
        }
        8 => {
            let exchange = exchanges.saturating_sub(u64::from(input.below(4)));
            Deed::Say(vec![u64::from(input.below(10)), exchange, u64::from(input.byte())])
        }
        9 => Deed::Tell(input.short().to_vec()),
        10 => Deed::Show { segment: u32::from(input.below(4)), bytes: input.pick(&[4096, 4096, 4096, 0, 1, u64::MAX]) },
        11 | 12 => Deed::Turn,
        _ => {
            let what = match input.below(8) {
                0..=2 => Wanted::Accept,
                3 => Wanted::Answer(true),
                4 => Wanted::Answer(false),
                5 => Wanted::Block(input.pick(&[1, 16, 4096, 2048, 100_000])),
                6 => Wanted::End,
                _ => Wanted::Reject,
            };
            Deed::Command { back: input.below(4), what }
        }
    }
}
