//! Which server a part has, when servers were lost.

use crate::types::{PartId, ServerId};

/// The server of a part whose layout names `home`: that one as long as the job has it, else one of those that are left. All processes of a
/// view come to the same one without a message, the parts of a lost server are spread evenly, and those of no other server move.
/// A job without servers has no parts that go anywhere.
pub fn server_of(part: PartId, home: ServerId, servers: impl Iterator<Item = ServerId> + Clone) -> ServerId {
    if servers.clone().any(|server| server == home) {
        return home;
    }
    let weight = |server: &ServerId| {
        mix(mix(part.key.0 ^ u64::from(part.index).rotate_left(40)) ^ u64::from(server.0).rotate_left(20))
    };
    servers.max_by_key(weight).unwrap_or(home)
}

/// The last step of splitmix64, which spreads each bit over all others.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TensorKey;

    #[test]
    fn only_the_parts_of_a_lost_server_move_and_those_evenly() {
        let all = || (0..4).map(ServerId);
        let left = || all().filter(|server| *server != ServerId(2));
        let part = |index| PartId { key: TensorKey(0x1234_5678_9abc), index };
        let mut counts = [0_u32; 4];
        for index in 0..3000 {
            let home = ServerId(index % 4);
            assert_eq!(server_of(part(index), home, all()), home);
            let now = server_of(part(index), home, left());
            if home == ServerId(2) {
                counts[now.0 as usize] += 1;
            } else {
                assert_eq!(now, home);
            }
        }
        assert_eq!(counts[2], 0);
        assert!(
            counts.iter().sum::<u32>() == 750 && counts.iter().all(|count| *count == 0 || *count > 200),
            "{counts:?}"
        );
    }

    #[test]
    fn a_part_whose_second_server_is_lost_moves_once_more() {
        let part = PartId { key: TensorKey(7), index: 3 };
        let first = server_of(part, ServerId(9), (0..3).map(ServerId));
        let second = server_of(part, ServerId(9), (0..3).map(ServerId).filter(|server| *server != first));
        assert_ne!(first, second);
    }
}
