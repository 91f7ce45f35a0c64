//! The dense sum: which contribution counts, when a sum is published and who gets it. Owns no bytes, threads or clocks.
//!
//! **Counted once.** A contribution is taken by its prefix, whichever exchanges bring it, and counted when all of it was taken. From then
//! on its worker's bit is set, and a repeat only waits for the sum. A transfer that breaks off has done nothing that its repeat does not
//! continue. Of two uploads of one worker the later one is read.
//!
//! **Cut-through.** When every caller has begun, the sum flows: its blocks go to all listeners as soon as every contribution has passed
//! them. The last block waits until every caller was counted ([`Step::Seal`](super::command::Step::Seal)). Until then the round can still
//! fail for everybody, and nobody has a whole sum. A damaged contribution has spoiled the sum, so it fails the round.
//!
//! **A broadcast** has one sender, the caller that brings the root's bytes. The others count as soon as they come. The sender waits for them
//! as they wait for it, so that a disagreement about the tensor or about the root reaches everybody.
//!
//! **Callers.** The workers of one machine reduce a part among themselves, and one of them exchanges it for all of them. The part's callers
//! are these workers and all workers that come alone. A round is due from the *set* of its callers in the view. Every decision compares
//! sets, because a count would let the bit of a worker that left stand for one that is still to come. A mean divides by workers.
//!
//! **Two rounds of a part are alive at most.** A worker pushes round s+1 only when it has the sum of s. So when all callers have reached
//! s+1, nobody can ask for s again and its memory goes. It also goes when nobody has read the sum for a step timeout: a name may be used
//! once. A worker that is owed sums and takes none for a step timeout does not read them: it is given up, with its link. After a failed
//! round a worker may run ahead without that proof. Then it is told to come back later, for at most a step timeout, so that it does not
//! overwrite a sum that a slow worker has not read. A worker that goes on to a later round without having come to s, or that
//! withdraws from s, fails s for the others at once.
//!
//! **A lost worker.** When a view lacks workers of the one before, rounds go on with the survivors. An open round restarts: its attempt
//! grows, what was contributed is void, and the survivors send again. A published sum stays as it is until every caller of the new view has
//! passed it, because some of them may have it already. So no two workers hold different sums of one round.
//!
//! **A lost server.** Its parts come here in the middle of their rounds. A sum that some workers have and others miss is brought by one that
//! has it ([`restoring`]), before anybody else comes.

mod absence;
mod aggregator;
mod closing;
mod giving;
mod keeping;
mod lateness;
mod opening;
mod readers;
mod refusals;
mod residual;
mod restoring;
mod round;
mod survivors;
mod withdrawing;

#[cfg(test)]
pub(crate) mod tests;

pub(super) use aggregator::Aggregator;
