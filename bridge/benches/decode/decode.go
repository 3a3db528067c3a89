// Decodes a saved answer of slurmrestd into structs, as Go clients do, and prints how many elements it had and how many
// nanoseconds that took. The structs have the fields that gpu-bridge reads.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

type number struct {
	Set      bool    `json:"set"`
	Infinite bool    `json:"infinite"`
	Number   float64 `json:"number"`
}

type node struct {
	Name            string   `json:"name"`
	State           []string `json:"state"`
	Reason          string   `json:"reason"`
	ReasonSetByUser string   `json:"reason_set_by_user"`
	ReasonChangedAt number   `json:"reason_changed_at"`
	Gres            string   `json:"gres"`
	GresUsed        string   `json:"gres_used"`
	Partitions      []string `json:"partitions"`
}

type job struct {
	JobID           int64    `json:"job_id"`
	JobState        []string `json:"job_state"`
	Nodes           string   `json:"nodes"`
	RequiredNodes   string   `json:"required_nodes"`
	UserName        string   `json:"user_name"`
	Partition       string   `json:"partition"`
	NodeCount       number   `json:"node_count"`
	Tasks           number   `json:"tasks"`
	TresPerNode     string   `json:"tres_per_node"`
	TresPerJob      string   `json:"tres_per_job"`
	TresPerTask     string   `json:"tres_per_task"`
	TresReqStr      string   `json:"tres_req_str"`
	TresAllocStr    string   `json:"tres_alloc_str"`
	GresDetail      []string `json:"gres_detail"`
	TimeLimit       number   `json:"time_limit"`
	SubmitTime      number   `json:"submit_time"`
	StartTime       number   `json:"start_time"`
	EndTime         number   `json:"end_time"`
	Requeue         bool     `json:"requeue"`
	StateReason     string   `json:"state_reason"`
	ArrayJobID      number   `json:"array_job_id"`
	ArrayTaskID     number   `json:"array_task_id"`
	ArrayTaskString string   `json:"array_task_string"`
	HetJobID        number   `json:"het_job_id"`
	HetJobOffset    number   `json:"het_job_offset"`
}

type answer struct {
	Nodes  []node            `json:"nodes"`
	Jobs   []job             `json:"jobs"`
	Errors []json.RawMessage `json:"errors"`
}

func main() {
	bytes, err := os.ReadFile(os.Args[2])
	if err == nil {
		var read answer
		start := time.Now()
		err = json.Unmarshal(bytes, &read)
		fmt.Println(len(read.Nodes)+len(read.Jobs), time.Since(start).Nanoseconds())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
