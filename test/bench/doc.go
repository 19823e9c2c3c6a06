// Command bench measures the product beside a floor: the least that a Go program without it
// would need for the same job on the same machine in the same minute. `make bench` builds the
// product and runs it.
//
// # The flow
//
//	groups --variants--> interleave --series--> rows --bars--> table on stdout, bench/results.json
//
// A variant is one way to do a job: the floor, the engine in this process, the agent behind
// its socket. Interleave takes a sample of each in turn, so that what the machine does meanwhile
// hits all of them alike. A row tells the least, the median and the 90th percentile of a
// variant, the ratio of its median to the floor's, and a bar: what is wanted of it, what was
// seen, and by how much it falls short. A bar that is missed is no failure of the run; a command
// that does not end as it must is.
//
// The agent is bin/agentd itself, started with `serve --local --socket` and ended by the process
// handle that starting it gave. See docs/design/performance.md for what each row means and
// where its floor comes from.
//
// The program starts itself again as a helper of a measurement: see child.go.
package main
