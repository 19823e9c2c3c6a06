// Cluster builds a Kubernetes cluster from source and boots it on this machine: one node, every component real, no
// container registry and no virtual machine. It is what the end-to-end tests, the benchmark and the demo run on when
// nobody names another cluster.
//
//	go run ./hack/cluster build             builds every component into the cache
//	go run ./hack/cluster up                builds, boots (or finds healthy) and writes bin/cluster/admin.conf
//	go run ./hack/cluster status            says what runs and whether it is healthy
//	go run ./hack/cluster load ARCHIVE...   imports OCI or docker image archives into the node
//	go run ./hack/cluster env [NAME]        prints the variables for envtest, kubectl and helm
//	go run ./hack/cluster down              stops everything and removes its state; the cache stays
//
// # Flow
//
// Components are pinned by one module, components/go.mod, so that a package several of them use is compiled once, and
// at the versions of the product's own go.mod, so that the product shares it too. They are compiled into a folder of the
// cache named by everything that decides their content, so a finished binary is never rebuilt and an unfinished one is
// never seen. A plan is the whole cluster as a value: files to write, processes to start in order, objects to apply. Its
// hash is stored beside the running cluster, which is how up tells whether what runs is what this checkout wants.
//
// # Invariants
//
// There is one cluster a machine, whichever checkout booted it: state in /var/lib/execsession-cluster, sockets and
// everything that must not survive a restart in /run/execsession-cluster. Nothing there refers to a checkout or to the
// cache, so both may disappear while the cluster runs.
//
// Nothing is repaired in place. A cluster that is not healthy, or not the one wanted, is torn down whole and booted
// again in seconds; its objects are lost, which is the contract of a development cluster.
//
// Only processes of ours are signalled: those whose pid, start time and boot were recorded, those that run a binary
// out of our state folder, and those inside the control group that all pods of this cluster live in.
//
// Every port is bound to loopback or to the node's address, which a bridge without ports carries, so nothing is
// reachable from other machines.
//
// # What differs from other clusters
//
// DNS, network policy and storage run on the node, not in pods, so a policy cannot select DNS by pod labels: it has to
// allow the address block. Volumes are folders and their size is recorded, not enforced. No image can be pulled:
// images are loaded and never garbage collected. Names that tests need are added to the hosts file of the DNS server,
// which status prints.
package main
