//! Who comes last to a sum of real ranks, and for how long the others wait for that rank alone.

use super::*;
use crate::collective::agreement::Last;
use crate::types::Cause;

#[test]
fn the_first_rank_counts_who_came_last_itself_too_although_it_slept() {
    for late in [0, 1] {
        let lasts: Arc<Mutex<Vec<Last>>> = Arc::default();
        let told = |rank: usize, options| {
            let lasts = Arc::clone(&lasts);
            let on_last: Box<dyn Fn(Last) + Send> = Box::new(move |last| {
                assert_eq!(rank, 0, "only the leader counts");
                lasts.lock().unwrap().push(last);
            });
            HostOptions { hears: Hears { on_last, ..Hears::default() }, ..options }
        };
        let machine = Machine::that(2, &told);
        let mut data = [vec![1_i32; 100], vec![2; 100]];
        let (sender, ended) = mpsc::channel();
        for rank in [1 - late, late] {
            let (member, sender) = (&machine.0[rank], sender.clone());
            let operation = member.operation(slot(7, 0), Op::Sum, 1.0, &mut data[rank]);
            member.0.run(operation, Done::new(move |outcome| sender.send(outcome).unwrap()));
            if rank != late {
                machine.later(Duration::from_millis(5000));
            }
        }
        assert!((0..2).all(|_| ended.recv_timeout(PATIENCE).unwrap().is_ok()));
        assert_eq!(data, [vec![3; 100], vec![3; 100]]);
        let [Last { rank, late: by_cause, is_step: true }] = lasts.lock().unwrap()[..] else { panic!("one operation") };
        let submit = by_cause[Cause::Submit as usize];
        assert_eq!(rank, WorkerId(late as u32));
        // The clock goes on by itself, too.
        let expected = Duration::from_millis(4999)..Duration::from_secs(20);
        assert!(expected.contains(&submit) && by_cause.iter().sum::<Duration>() == submit, "{by_cause:?}");
    }
}
