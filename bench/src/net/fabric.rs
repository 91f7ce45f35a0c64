//! Machines that are network namespaces, joined by a bridge, and the processes on them.
//!
//! Nothing here has a name that could be left behind. A namespace lives as long as the process that holds it, and a link as long as its
//! namespace. Every process runs below a process id namespace, which the kernel empties when its first process ends. Each holder is a `cat`
//! that reads from a pipe of this process. When this process ends, however it ends, the holders read the end of the pipe and exit, and
//! everything is gone.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::link::{Link, Traffic};
use super::tools;

/// A number of machines on one bridge. Dropping it ends all processes on them.
pub(crate) struct Fabric {
    // Dropped first: its end kills all processes in the other namespaces.
    warden: Holder,
    bridge: Holder,
    machines: Vec<Holder>,
    link: Link,
}

/// One machine, by index; those of the workers come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Machine(pub(crate) u8);

impl Machine {
    pub(crate) fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.0 + 1)
    }
}

/// Where a process runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Machine(Machine),
    /// On the bridge, beside the shaped links: for traffic that is not measured.
    Bridge,
}

impl Place {
    pub(crate) fn address(self) -> Ipv4Addr {
        match self {
            Self::Machine(machine) => machine.address(),
            Self::Bridge => BRIDGE,
        }
    }
}

impl Fabric {
    /// Builds `machines` machines, each with one link to the bridge that is shaped in both directions.
    ///
    /// # Errors
    /// What this host lacks, or the command that failed and its message.
    pub(crate) fn build(machines: u8, link: Link) -> Result<Self, String> {
        let warden = Holder::start(&["--pid", "--fork", "--kill-child"])?;
        let bridge = Holder::start(&["--net"])?;
        let machines = (0..machines).map(|_| Holder::start(&["--net"])).collect::<Result<Vec<_>, _>>()?;
        let fabric = Self { warden, bridge, machines, link };
        fabric.connect()?;
        fabric.shape()?;
        Ok(fabric)
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn machines(&self) -> impl Iterator<Item = Machine> + use<> {
        (0u8..).take(self.machines.len()).map(Machine)
    }

    /// Words before a command that make it run at `place`. The command stays a child of the process that starts it, and must end by itself.
    pub(crate) fn words(&self, place: Place) -> Vec<OsString> {
        vec!["nsenter".into(), self.net(place).into(), "--".into()]
    }

    /// A command that runs `program` at `place`. It ends with the process that was started for it. Processes that it starts end with the
    /// fabric.
    pub(crate) fn command(&self, place: Place, program: &OsStr) -> Command {
        let mut command = tools::command("nsenter");
        command.arg(format!("--pid=/proc/{}/ns/pid_for_children", self.warden.pid()));
        command.arg(self.net(place)).args(["setpriv", "--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// The bytes that each machine's link has carried since it was built.
    ///
    /// # Errors
    /// Which command failed with what.
    pub(crate) fn traffic(&self) -> Result<Vec<Traffic>, String> {
        let show = ["tc", "-s", "-j", "qdisc", "show"];
        let ports = self.run(Place::Bridge, &show, "")?;
        let of = |machine: Machine| {
            let sent = self.run(Place::Machine(machine), &show, "")?;
            Traffic::parse(&sent, "eth0", &ports, &port(machine))
        };
        self.machines().map(of).collect()
    }

    /// Drops at random one in `one_of` datagrams and segments on their way to each machine; `None` ends the drops.
    ///
    /// # Errors
    /// If nftables is not installed; or the command that failed and its message.
    pub(crate) fn lose(&self, one_of: Option<u32>) -> Result<(), String> {
        for machine in self.machines() {
            let mut script = String::from("table ip loss\ndelete table ip loss\n");
            if let Some(one_of) = one_of {
                script += &format!(
                    "table ip loss {{\nchain arriving {{\ntype filter hook prerouting priority 0;\n\
                     iifname eth0 meta l4proto {{ tcp, udp }} numgen random mod {one_of} 0 drop\n}}\n}}\n"
                );
            }
            self.run(Place::Machine(machine), &["nft", "-f", "-"], &script)?;
        }
        Ok(())
    }

    /// Makes every packet on the links one frame: without segmentation offloads, a lost packet is a lost frame.
    ///
    /// # Errors
    /// Which command failed with what.
    pub(crate) fn segment(&self) -> Result<(), String> {
        for machine in self.machines() {
            let script = "link set dev eth0 gso_max_segs 1\n";
            self.run(Place::Machine(machine), &["ip", "-batch", "-"], script)?;
        }
        Ok(())
    }

    fn connect(&self) -> Result<(), String> {
        let mut script = format!(
            "link set lo up\nlink add name bridge address 02:77:00:00:00:fe type bridge mcast_snooping 0\n\
             addr add {BRIDGE}/24 dev bridge\nlink set bridge addrgenmode none up\n"
        );
        for machine in self.machines() {
            let (port, mtu, holder) = (port(machine), self.link.mtu, self.machines[usize::from(machine.0)].pid());
            script += &format!(
                "link add name {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {holder}\n\
                 link set {port} addrgenmode none master bridge up\n"
            );
        }
        self.run(Place::Bridge, &["ip", "-batch", "-"], &script)?;
        for machine in self.machines() {
            let place = Place::Machine(machine);
            // Set on the route, because a namespace may not choose every congestion control as its default.
            let (address, tcp) = (machine.address(), &self.link.tcp);
            let script = format!(
                "link set lo up\naddr add {address}/24 dev eth0 noprefixroute\nlink set eth0 addrgenmode none up\n\
                 route add {NETWORK} dev eth0 src {address} congctl {tcp}\n"
            );
            self.run(place, &["ip", "-batch", "-"], &script)?;
        }
        Ok(())
    }

    fn shape(&self) -> Result<(), String> {
        let mut ports = String::new();
        for machine in self.machines() {
            self.run(Place::Machine(machine), &["tc", "-batch", "-"], &self.link.shape("eth0"))?;
            ports += &self.link.shape(&port(machine));
        }
        self.run(Place::Bridge, &["tc", "-batch", "-"], &ports).map(drop)
    }

    /// Runs a command of this host in the network of `place`, with `input`, and returns what it printed.
    fn run(&self, place: Place, line: &[&str], input: &str) -> Result<String, String> {
        let failed = |what: &str| format!("{} failed: {what}", line.join(" "));
        let mut command = tools::command("nsenter");
        command.arg(self.net(place)).args(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
        // A command that ends without reading its input explains itself on standard error.
        let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
        let output = child.wait_with_output().map_err(|error| failed(&error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn net(&self, place: Place) -> String {
        let holder = match place {
            Place::Machine(Machine(index)) => &self.machines[usize::from(index)],
            Place::Bridge => &self.bridge,
        };
        format!("--net=/proc/{}/ns/net", holder.pid())
    }
}

/// The device at the bridge's end of a machine's link.
fn port(machine: Machine) -> String {
    format!("port{}", machine.0)
}

const NETWORK: &str = "10.77.0.0/24";
const BRIDGE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

/// A process that does nothing but keep namespaces alive. Dropping it releases them.
struct Holder {
    child: Child,
    input: Option<ChildStdin>,
}

impl Holder {
    /// Starts a holder in new namespaces; the arguments for `unshare` name their kinds.
    fn start(kinds: &[&str]) -> Result<Self, String> {
        let failed = |what: &str| format!("unshare {} failed: {what}", kinds.join(" "));
        let mut command = tools::command("unshare");
        command.args(kinds).arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
        let mut input = child.stdin.take().expect("piped");
        let mut echo = String::new();
        // An answer means that the holder is in its namespaces.
        let asked = input.write_all(b"there?\n");
        let heard = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut echo);
        if asked.is_err() || heard.is_err() || echo.is_empty() {
            let output = child.wait_with_output().map_err(|error| failed(&error.to_string()))?;
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(Self { child, input: Some(input) })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The end of its input ends the holder. With a process id namespace, all processes in it end before the wait returns.
        self.input = None;
        let _ = self.child.wait();
    }
}
