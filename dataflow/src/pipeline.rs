//! Building a job's graph: the pipeline, and the collections that flow between its stages.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use timely::communication::allocator::AllocatorBuilder;
use timely::communication::allocator::ProcessBuilder;
use timely::communication::allocator::zero_copy::initialize::{
    CommsGuard, initialize_networking_from_sockets,
};
use timely::communication::{Config as Communication, Hooks, WorkerGuards};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{Exchange, Pipeline as Local};
use timely::dataflow::operators::Operator;
use timely::dataflow::{Scope, Stream};
use timely::worker::Worker;
use timely::{Config, WorkerConfig};

use crate::container::Batch;
use crate::counter::Counter;
use crate::flow::{FlowId, Flows};
use crate::job::{Job, Turns};
use crate::net::{Begun, Plane};
use crate::options::{Demand, Shares};
use crate::progress::Progress;
use crate::{Error, Options, StopSignal};

/// The time of every stream: the epoch of flow control.
pub(crate) type Epoch = u64;

/// A stream that carries nothing but the news that its epochs are done.
pub(crate) type Acks<'scope> = Stream<'scope, Epoch, Vec<()>>;

/// The graph under construction on one worker. See [`run`].
#[derive(Clone)]
pub struct Pipeline<'scope>(pub(crate) Rc<Graph<'scope>>);

impl std::fmt::Debug for Pipeline<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Pipeline(worker {} of {})",
            self.worker_index(),
            self.num_workers()
        )
    }
}

pub(crate) struct Graph<'scope> {
    pub(crate) scope: Scope<'scope, Epoch>,
    pub(crate) job: Arc<Job>,
    pub(crate) options: Arc<Options>,
    /// How the memory is dealt out, once the whole graph is known: to be read when an operator runs.
    pub(crate) shares: Rc<Cell<Shares>>,
    /// What the graph asks memory for, so far.
    pub(crate) demand: Cell<Demand>,
    /// Which sources share a window, and where their epochs end.
    pub(crate) flows: RefCell<Flows<'scope>>,
}

impl Graph<'_> {
    pub(crate) fn progress(&self) -> &Progress {
        &self.options.progress
    }

    /// This process, and how many there are.
    pub(crate) fn process(&self) -> (usize, usize) {
        let (index, peers) = (self.scope.index(), self.scope.peers());
        // Every process has the same number of workers, numbered in a row.
        let workers = if self.options.serialise {
            1
        } else {
            self.options.workers
        };
        (index / workers, peers / workers)
    }

    /// Whose turn it is among the tasks of a source, for all workers of this process.
    pub(crate) fn turns(&self, source: usize) -> Turns {
        if self.options.serialise {
            Turns::default()
        } else {
            self.job.turns(source)
        }
    }

    fn demand(&self, count: impl FnOnce(&mut Demand)) {
        let mut demand = self.demand.get();
        count(&mut demand);
        self.demand.set(demand);
    }

    /// Notes a source, and gives its number in the graph.
    pub(crate) fn count_source(&self) -> usize {
        self.demand(|demand| demand.sources += 1);
        self.demand.get().sources - 1
    }

    pub(crate) fn count_sort(&self) {
        self.demand(|demand| demand.sorts += 1);
    }

    pub(crate) fn count_table(&self) {
        self.demand(|demand| demand.tables += 1);
    }

    pub(crate) fn count_replay(&self) {
        self.demand(|demand| demand.replays += 1);
    }
}

impl<'scope> Pipeline<'scope> {
    /// The worker on which this copy of the graph runs, from 0.
    pub fn worker_index(&self) -> usize {
        self.0.scope.index()
    }

    /// The workers of the whole job.
    pub fn num_workers(&self) -> usize {
        self.0.scope.peers()
    }

    /// A named sum, which the job's [`Report`] has in the end. To be captured by closures of stages; may be asked for on any worker, on all
    /// or some of them.
    pub fn counter(&self, name: &str) -> Counter {
        self.0.job.sums.counter(name)
    }

    /// The process in which this copy of the graph runs, from 0.
    pub fn process_index(&self) -> usize {
        self.0
            .options
            .cluster
            .as_ref()
            .map_or(0, |cluster| cluster.index())
    }

    /// The processes of the whole job.
    pub fn num_processes(&self) -> usize {
        self.0.options.cluster.as_ref().map_or(1, |cluster| cluster.len())
    }

    /// What closures that block can look at, to give up when the job has ended without them.
    pub fn stop_signal(&self) -> StopSignal {
        StopSignal(self.0.job.clone())
    }
}

/// Items that flow from one stage to the next. Each worker sees its own part of them, in no particular order.
///
/// A collection that nothing consumes is dropped item by item.
#[must_use = "a collection does nothing until a stage consumes it"]
pub struct Collection<'scope, T: 'static> {
    pub(crate) pipeline: Pipeline<'scope>,
    pub(crate) stream: Stream<'scope, Epoch, Batch<T>>,
    /// The sources that wait for what becomes of these items.
    pub(crate) flow: FlowId,
}

impl<T> std::fmt::Debug for Collection<'_, T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Collection<{}>", std::any::type_name::<T>())
    }
}

/// What a finished job leaves behind.
#[derive(Debug, Clone)]
pub struct Report {
    /// Counters of every stage, and the peak of what was held.
    pub progress: Progress,
    /// The sums of all counters, by name, over all workers and processes.
    pub counters: BTreeMap<String, u64>,
}

/// Runs a job to its end.
///
/// `build` is called once on every worker thread, with that worker's pipeline, and has to build the same graph on each: the same
/// stages in the same order. What it captures is shared or cloned; the closures that it gives to stages belong to one worker.
/// The call blocks until all is done and every thread that the job started has ended, also when it fails.
///
/// With [`Options::cluster`], all processes of the cluster have to call it with the same graph; each returns when all have finished, or with
/// the cause when one has failed.
///
/// # Errors
///
/// The first thing that went wrong on any thread: what a closure returned ([`Error::Stage`], with the closure's error as
/// source), a panic anywhere, a full spill disk, duplicate keys, cancellation, a process that was lost, or what went wrong in another
/// process.
pub fn run<B>(options: Options, build: B) -> Result<Report, Error>
where
    B: for<'scope> Fn(&Pipeline<'scope>) + Send + Sync + 'static,
{
    let job = Job::new(options.cancel.clone());
    job.watch(options.progress.clone(), options.trace.clone());
    let progress = options.progress.clone();
    let cluster = options.cluster.clone().filter(|cluster| cluster.len() > 1);
    let Some(cluster) = cluster else {
        run_alone(&job, options, build);
        return job.result(progress);
    };
    match cluster.begin_run(options.workers, options.memory_bytes, &job) {
        Ok(begun) => {
            let plane = begun.plane.clone();
            run_together(&job, options, cluster.index(), begun, build);
            cluster.end_run(&plane, &job);
        }
        Err(error) => {
            job.fail(error);
            cluster.give_up_run(&job);
        }
    }
    job.result(progress)
}

/// Runs the workers of a job that has one process.
fn run_alone<B>(job: &Arc<Job>, options: Options, build: B)
where
    B: for<'scope> Fn(&Pipeline<'scope>) + Send + Sync + 'static,
{
    let options = Arc::new(options);
    let communication = match options.workers {
        1 => Communication::Thread,
        workers if options.serialise => Communication::ProcessBinary(workers),
        workers => Communication::Process(workers),
    };
    let config = Config {
        communication,
        worker: WorkerConfig::default(),
    };
    let workers_job = job.clone();
    finish(
        job,
        timely::execute(config, move |worker| work(worker, &workers_job, &options, &build)),
    );
}

/// Ends timely's own threads when the workers have gone.
struct Connections {
    plane: Arc<Plane>,
    guard: Option<CommsGuard>,
}

impl Drop for Connections {
    fn drop(&mut self) {
        if self.plane.job.stopped_quietly() {
            self.plane.shut();
        }
        self.plane.workers_gone();
        // These threads don't panic, as their connections never fail; if one did, the job has ended all the same.
        let guard = self.guard.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(guard)));
    }
}

/// Runs this process's workers of a job that has several.
fn run_together<B>(job: &Arc<Job>, mut options: Options, index: usize, begun: Begun, build: B)
where
    B: for<'scope> Fn(&Pipeline<'scope>) + Send + Sync + 'static,
{
    options.memory_bytes = begun.memory;
    let options = Arc::new(options);
    let workers = options.workers;
    let mut hooks = Hooks::default();
    // Empty buffers of 1 MiB that are kept for each connection and worker.
    hooks.refill.limit = Some(2);
    let inside = ProcessBuilder::new_typed_vector(workers, hooks.refill.clone(), None);
    let (builders, guard) =
        match initialize_networking_from_sockets(inside, begun.links, index, workers, hooks) {
            Ok(connected) => connected,
            Err(error) => return job.fail(Error::Start(format!("the connections' threads: {error}"))),
        };
    let connections = Connections {
        plane: begun.plane,
        guard: Some(guard),
    };
    let builders = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
    let workers_job = job.clone();
    let guards = timely::execute::execute_from(
        builders,
        Box::new(connections),
        WorkerConfig::default(),
        move |worker| work(worker, &workers_job, &options, &build),
    );
    finish(job, guards);
}

/// Waits until all workers and threads have ended.
fn finish(job: &Arc<Job>, guards: Result<WorkerGuards<()>, String>) {
    match guards {
        Ok(guards) => {
            for (index, outcome) in guards.join().into_iter().enumerate() {
                if outcome.is_err() {
                    let message = format!("worker {index} did not end in order");
                    job.fail(Error::Panic {
                        stage: "worker".into(),
                        input: None,
                        message,
                    });
                }
            }
        }
        Err(message) => job.fail(Error::Start(message)),
    }
    job.join();
}

impl Job {
    fn result(&self, progress: Progress) -> Result<Report, Error> {
        match self.take_error() {
            None => Ok(Report {
                progress,
                counters: self.sums.all(),
            }),
            Some(error) => Err(error),
        }
    }
}

/// When all is done, the first worker of each process tells the other processes what its process has counted.
fn tell_sums<'scope>(pipeline: &Pipeline<'scope>, ends: Acks<'scope>) {
    let graph = &pipeline.0;
    let ((process, num_processes), peers) = (graph.process(), graph.scope.peers());
    let workers = peers / num_processes;
    if num_processes == 1 || graph.options.serialise {
        return;
    }
    let sums = graph.job.sums.clone();
    let first = graph.scope.index() == process * workers;
    let told = ends.unary_frontier::<CapacityContainerBuilder<Vec<(u64, Vec<(String, u64)>)>>, _, _, _>(
        Local,
        "Counters",
        move |capability, _| {
            let mut capability = Some(capability);
            move |(input, frontier), output| {
                input.for_each(|_, _| ());
                if frontier.is_empty()
                    && let Some(capability) = capability.take()
                    && first
                {
                    let others = (0..num_processes).filter(|other| *other != process);
                    let told = others.map(|other| ((other * workers) as u64, sums.here()));
                    output.session(&capability).give_iterator(told);
                }
            }
        },
    );
    let sums = graph.job.sums.clone();
    let to_first = Exchange::new(|(worker, _): &(u64, Vec<(String, u64)>)| *worker);
    told.sink(to_first, "CountersElsewhere", move |(input, _)| {
        input.for_each(|_, told| {
            for (_, told) in told.drain(..) {
                sums.add_elsewhere(told);
            }
        });
    });
}

fn work<B>(worker: &mut Worker, job: &Arc<Job>, options: &Arc<Options>, build: &B)
where
    B: for<'scope> Fn(&Pipeline<'scope>),
{
    job.register_worker();
    crate::progress::on_worker(worker.index());
    crate::schedule_log::register(worker, &options.progress, options.trace.clone());
    job.guard("worker", || {
        worker.dataflow::<Epoch, _, _>(|scope| {
            let graph = Graph {
                scope,
                job: job.clone(),
                options: options.clone(),
                shares: Rc::new(Cell::new(Shares::new(
                    options.memory_bytes,
                    options.workers,
                    Demand::default(),
                ))),
                demand: Cell::default(),
                flows: RefCell::default(),
            };
            let pipeline = Pipeline(Rc::new(graph));
            // A panic here must not leave the graph half connected, which timely would answer with an abort.
            let built = catch_unwind(AssertUnwindSafe(|| build(&pipeline)));
            let graph = &pipeline.0;
            let ends = graph.flows.take().connect(scope);
            tell_sums(&pipeline, ends);
            let shares = Shares::new(options.memory_bytes, options.workers, graph.demand.get());
            graph.shares.set(shares);
            if let Err(panic) = built {
                std::panic::resume_unwind(panic);
            }
        });
        // The park is bounded so that a failure elsewhere is seen even if its wake-up is lost.
        while worker.step_or_park(Some(std::time::Duration::from_millis(50))) {
            if job.stopped() {
                break;
            }
            job.fail_if_stalled(options.stall);
        }
        Ok(())
    });
    if job.stopped() {
        // Dropping the operators drops their ends of the queues, and with that ends the threads behind them.
        job.guard("worker", || {
            for dataflow in worker.installed_dataflows() {
                worker.drop_dataflow(dataflow);
            }
            Ok(())
        });
    }
}
